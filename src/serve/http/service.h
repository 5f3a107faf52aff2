// The API: routes, keys, limits; from exchanges to the engine and back. Knows nothing of sockets.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/http/backend.h"
#include "serve/http/completion_request.h"
#include "serve/http/exchange.h"
#include "serve/http/key_ring.h"
#include "serve/sessions/session_manager.h"

namespace laplace {

struct ServiceOptions {
  std::string model_name = "laplace";  // /v1/models
  std::string model_root;              // its directory
  std::string version = "0";           // of the program
  std::string chat_template = "plain";
  ApiLimits limits;
  KeyRing keys;
  std::vector<std::string> cors_origins;   // "*" is any; none: CORS is off
  std::vector<std::string> allowed_hosts;  // of the Host header; none: any
  int workers = 2;                         // threads that parse, tokenize and load
  int64_t max_pending = 256;               // requests that wait for one of them
  int64_t max_concurrent_per_key = 1024;   // requests
  int64_t prefix_cache_bytes = 512ll << 20;
  std::chrono::milliseconds session_wait{8000};  // for a session that is in use
  std::chrono::milliseconds max_time{0};         // of one request, 0: no bound
  std::chrono::milliseconds heartbeat{10'000};   // of streams with nothing to say, 0: none
};

class Service {
 public:
  // All of them must outlive this. The engine's model must have a tokenizer.
  Service(Backend& backend, SessionManager& sessions, const ServiceOptions& options);
  // Finishes what its threads do, and waits until no request is active: exchanges, engine and store
  // must have let go of them, or do so on threads of their own.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // For HttpServer.
  std::optional<HttpResponse> precheck(const HttpRequest& request);
  HttpFields fields(const HttpRequest& request) const;  // CORS
  void handle(std::shared_ptr<Exchange> exchange);
  void count(const HttpRequest& request, int status, bool dropped);

  // From now on 503 for new work; what runs goes on.
  void begin_drain();
  // Requests that have arrived and not ended.
  int64_t active() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace laplace
