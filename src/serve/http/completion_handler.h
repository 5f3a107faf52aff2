// POST /v1/completions and /v1/chat/completions: from an exchange to a GenerationCall.
// Internal to src/serve/http.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
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
  // Counts a request of a tenant as long as it lives.
  class Ticket;
  struct Job;

  // On a worker.
  void read(const std::shared_ptr<Job>& job);
  void take_session(const std::shared_ptr<Job>& job);
  void start(const std::shared_ptr<Job>& job, std::unique_ptr<SessionLease> lease);

  ServiceContext& context_;
  std::atomic<int64_t> pending_{0};
  std::mutex mutex_;
  std::map<std::string, int64_t> per_tenant_;  // under mutex_
};

}  // namespace laplace
