// See request_tickets.h.
#include "serve/http/request_tickets.h"

#include "serve/http/api_error.h"

namespace laplace {

class RequestTickets::Ticket {
 public:
  Ticket(RequestTickets& all, std::string tenant) : all_(all), tenant_(std::move(tenant)) {
    const std::lock_guard lock(all_.mutex_);
    int64_t& count = all_.per_tenant_[tenant_];
    if (count >= all_.most_) {
      throw ApiError(429, "", "too_many_requests",
                     cat("this key has ", count, " requests running, as many as it may; wait for ",
                         "one to end"));
    }
    ++count;
    ++all_.active_;
  }
  ~Ticket() {
    {
      const std::lock_guard lock(all_.mutex_);
      const auto place = all_.per_tenant_.find(tenant_);
      if (--place->second == 0) all_.per_tenant_.erase(place);
    }
    --all_.active_;  // the last: behind it `all_` may be gone
  }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

 private:
  RequestTickets& all_;
  const std::string tenant_;
};

std::shared_ptr<void> RequestTickets::take(const std::string& tenant) {
  return std::make_shared<Ticket>(*this, tenant);
}

}  // namespace laplace
