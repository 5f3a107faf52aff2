// POST /v1/completions and /v1/chat/completions: from an exchange to a GenerationCall.
// Internal to src/serve/http.
#pragma once

#include <memory>
#include <string>

#include "serve/http/completion_request.h"
#include "serve/http/exchange.h"
#include "serve/http/service_context.h"

namespace laplace {

class CompletionHandler {
 public:
  explicit CompletionHandler(ServiceContext& context) : context_(context) {}

  // On the exchange's sequence. Throws ApiError when there is no room.
  void handle(std::shared_ptr<Exchange> exchange, const std::string& tenant, bool chat);

 private:
  struct Job;

  // On a worker; take_session on one of the store's.
  void read(const std::shared_ptr<Job>& job);
  void take_session(const std::shared_ptr<Job>& job);
  void start(const std::shared_ptr<Job>& job);

  ServiceContext& context_;
};

}  // namespace laplace
