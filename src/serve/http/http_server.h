// The listener: accepts connections and turns bytes into exchanges, within limits.
//
// HTTP/1.1 (and 1.0) on Boost.Beast's parser: one strand a connection, a few threads for all. What
// a client can make us hold is bounded: its header, its body, the bodies of all clients together,
// what it leaves unread, and the time for each part.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "serve/http/exchange.h"

namespace laplace {

struct HttpLimits {
  int threads = 2;                             // that read, write and format
  int64_t max_connections = 4096;              // more are answered 503 and closed
  int64_t max_header_bytes = 32 << 10;         // 431
  int64_t max_target_bytes = 8 << 10;          // 414
  int64_t max_body_bytes = 8 << 20;            // 413
  int64_t max_body_bytes_total = 512ll << 20;  // of all requests being read; 429 beyond
  int64_t max_output_bytes = 1 << 20;          // unread by one client; then it is dropped
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds idle_timeout{75'000};   // between two requests
  std::chrono::milliseconds write_timeout{30'000};  // for 64 KB to be taken
};

// What the access log knows when an exchange has ended.
struct AccessRecord {
  int status = 0;
  int64_t bytes = 0;  // of the answer, header included
  double seconds = 0;
  bool dropped = false;  // the client went away, or was dropped, before the end
  Json fields;           // by annotate()
};
using AccessCallback = std::function<void(const HttpRequest&, const AccessRecord&)>;

class HttpServer {
 public:
  // `access` is called once for every request whose header was understood; on any I/O thread.
  HttpServer(const HttpLimits& limits, HttpCallbacks callbacks, AccessCallback access);
  ~HttpServer();  // stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Binds a numeric address or "localhost"; port 0 picks one. Returns the port. Throws
  // Error(kBadInput). Connections are accepted from then on.
  uint16_t listen(const std::string& host, uint16_t port);
  // From now on every answer ends its connection.
  void begin_drain();
  // Accepts nothing more, closes what is idle, gives answers that are under way `grace` to be
  // taken, closes everything, waits for the exchanges that others still hold, and ends the threads.
  void stop(std::chrono::milliseconds grace = {});

  int64_t connections() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace laplace
