// One HTTP request and the way its answer takes, without saying how bytes travel: connection.h
// implements it over TCP, tests and the fuzzer in memory.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace laplace {

struct HttpRequest {
  std::string method;
  std::string target;  // as it was sent
  std::string body;
  std::string request_id;  // the client's x-request-id made harmless, or one of ours
  std::string authorization;
  std::string content_type;
  std::string origin;
  std::string cors_headers;  // of a preflight: access-control-request-headers
  std::string host;
  std::string peer;  // address and port
  std::chrono::steady_clock::time_point received;

  // The target's path, not decoded: no route needs an escape, so none is understood.
  std::string_view path() const {
    const std::string_view rest = std::string_view(target).substr(authority_end());
    const std::string_view path = rest.substr(0, rest.find('?'));
    return path.empty() ? std::string_view("/") : path;
  }
  // The host and port that were asked for. One in the target goes before the header's: clients that
  // take us for a proxy send "http://host/path", which is the same as the path (RFC 9112, 3.2.2).
  std::string_view asked_host() const {
    const size_t end = authority_end();
    if (end == 0) return host;
    return std::string_view(target).substr(kScheme.size(), end - kScheme.size());
  }

 private:
  static constexpr std::string_view kScheme = "http://";
  // Where the path begins in a target with a host; 0 where the target is a path.
  size_t authority_end() const {
    if (!target.starts_with(kScheme)) return 0;
    return std::min(target.find_first_of("/?", kScheme.size()), target.size());
  }
};

using HttpFields = std::vector<std::pair<std::string, std::string>>;  // of a header

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpFields headers;  // besides the usual ones
};

std::string_view http_reason(int status);

// Thread rules: every member may be called from any thread. What is called in order by one thread
// happens in that order. Calls after the end, or after the client has gone, do nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const HttpRequest& request() const = 0;
  // The body has been read and is not needed any more: its memory counts against a bound.
  virtual void release_body() = 0;
  // Runs `work` on the exchange's own sequence: never two at once, and soon. It must not block.
  virtual void post(std::function<void()> work) = 0;

  // The whole answer. Either this, once, or a stream.
  virtual void respond(HttpResponse response) = 0;
  // Begins an answer of unknown length; the body of `head` is its first piece.
  virtual void open_stream(HttpResponse head) = 0;
  // A client that leaves more than the limit of its connection unread loses it.
  virtual void write(std::string bytes) = 0;
  virtual void finish() = 0;

  // Runs `work` in post()'s sequence after `delay`, unless the exchange is over by then. One at a
  // time: a later call takes the place of the one before.
  virtual void post_after(std::chrono::milliseconds delay, std::function<void()> work) = 0;

  // Called once if the client goes away, or is dropped, before the end: in post()'s sequence.
  virtual void on_closed(std::function<void()> callback) = 0;
  // More fields for the access log.
  virtual void annotate(Json fields) = 0;
};

// What a server of requests asks of who answers them.
struct HttpCallbacks {
  // Looks at a request whose body has not been read yet; an answer given here refuses the body.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> precheck;
  // More of the header of every answer to it, of refusals for its form too.
  std::function<HttpFields(const HttpRequest&)> fields;
  // Answers it; must not block.
  std::function<void(std::shared_ptr<Exchange>)> handler;
};

}  // namespace laplace
