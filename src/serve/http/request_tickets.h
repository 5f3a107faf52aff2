// Counts the requests that are under way, of all and of each tenant. Internal to src/serve/http.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace laplace {

// Thread-safe.
class RequestTickets {
 public:
  explicit RequestTickets(int64_t most_per_tenant) : most_(most_per_tenant) {}

  // Counted as long as it lives. Throws ApiError 429 where the tenant has as many as it may.
  std::shared_ptr<void> take(const std::string& tenant);
  // At 0 what the requests used may go.
  int64_t active() const { return active_; }

 private:
  class Ticket;

  const int64_t most_;
  std::mutex mutex_;
  std::map<std::string, int64_t> per_tenant_;  // under mutex_
  std::atomic<int64_t> active_{0};
};

}  // namespace laplace
