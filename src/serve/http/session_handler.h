// /v1/sessions: list, show, fork, delete. Internal to src/serve/http.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/exchange.h"
#include "serve/http/service_context.h"

namespace laplace {

// Each answers from a worker thread, for the store may block.
class SessionHandler {
 public:
  explicit SessionHandler(ServiceContext& context) : context_(context) {}

  void list(const std::shared_ptr<Exchange>& exchange, const std::string& tenant);
  void show(const std::shared_ptr<Exchange>& exchange, const std::string& tenant,
            std::string_view id);
  void erase(const std::shared_ptr<Exchange>& exchange, const std::string& tenant,
             std::string_view id);
  // The body may name the new session: {"name": "..."}.
  void fork(const std::shared_ptr<Exchange>& exchange, const std::string& tenant,
            std::string_view id);

 private:
  template <class Body>
  void work(const std::shared_ptr<Exchange>& exchange, const std::string& tenant, Body body);
  std::optional<SessionInfo> found(const SessionKey& key);

  ServiceContext& context_;
};

}  // namespace laplace
