// The life of a server: listen, serve, drain, stop.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "serve/http/http_server.h"
#include "serve/http/service.h"

namespace laplace {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;   // 0 picks one
  bool insecure = false;  // serve a network without a key
  std::chrono::milliseconds drain_time{30'000};
  std::string access_log = "-";  // a file, "-" for standard error, "off"
  HttpLimits http;
  ServiceOptions service;
};

// Throws Error(kBadInput) when the address can be reached from other machines and there is no key,
// unless --insecure is said.
void check_exposure(const ServerOptions& options);

// Listens, tells `on_listening` the address ("http://127.0.0.1:8000"), and serves until
// stop_requested(). Then: new requests are answered 503 and /health says so; those that run have
// drain_time to end; the rest get an error and the end of their stream; sessions are saved.
// `backend` is stopped when this returns.
void run_server(Backend& backend, SessionManager& sessions, const ServerOptions& options,
                const std::function<void(const std::string& address)>& on_listening);

}  // namespace laplace
