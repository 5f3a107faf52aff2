// See completion_handler.h.
#include "serve/http/completion_handler.h"

#include <utility>

#include "serve/http/generation_call.h"
#include "serve/http/handlers_common.h"

namespace laplace {

namespace {

// Between two looks at a session that is in use.
constexpr std::chrono::milliseconds kSessionPoll{20};

}  // namespace

class CompletionHandler::Ticket {
 public:
  Ticket(CompletionHandler& handler, std::string tenant)
      : handler_(handler), tenant_(std::move(tenant)) {
    const std::lock_guard lock(handler_.mutex_);
    int64_t& count = handler_.per_tenant_[tenant_];
    if (count >= handler_.context_.options.max_concurrent_per_key) {
      throw ApiError(429, "", "too_many_requests",
                     cat("this key has ", count, " requests running, as many as it may; wait for ",
                         "one to end"));
    }
    ++count;
    ++handler_.context_.active;
  }
  ~Ticket() {
    {
      const std::lock_guard lock(handler_.mutex_);
      const auto place = handler_.per_tenant_.find(tenant_);
      if (--place->second == 0) handler_.per_tenant_.erase(place);
    }
    --handler_.context_.active;  // the last: at 0 the service may go
  }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

 private:
  CompletionHandler& handler_;
  const std::string tenant_;
};

struct CompletionHandler::Job {
  std::shared_ptr<Exchange> exchange;
  std::string tenant;
  bool chat;
  std::shared_ptr<Ticket> ticket;
  CompletionRequest request;
  std::chrono::steady_clock::time_point session_deadline;
  std::atomic<bool> gone{false};  // the client
};

void CompletionHandler::handle(std::shared_ptr<Exchange> exchange, const std::string& tenant,
                               bool chat) {
  if (context_.draining) {
    throw ApiError(503, "", "stopping", "the server is stopping; send the request to another");
  }
  if (pending_ >= context_.options.max_pending) {
    throw ApiError(429, "", "queue_full", "too many requests wait to be read; try again");
  }
  const auto job = std::make_shared<Job>();
  job->exchange = std::move(exchange);
  job->tenant = tenant;
  job->chat = chat;
  job->ticket = std::make_shared<Ticket>(*this, tenant);
  // Until the call takes over, nothing is running that would have to be cancelled.
  job->exchange->on_closed([job] { job->gone = true; });
  ++pending_;
  context_.post([this, job] {
    --pending_;
    read(job);
  });
}

void CompletionHandler::read(const std::shared_ptr<Job>& job) {
  if (job->gone) return;
  answer_errors(job->exchange, [&] {
    const std::string& body = job->exchange->request().body;
    const int64_t vocab_size = context_.backend.model().config.vocab_size;
    const ApiLimits& limits = context_.options.limits;
    job->request =
        job->chat ? read_chat(body, limits, vocab_size) : read_completion(body, limits, vocab_size);
    job->exchange->release_body();
    const std::string& model = job->request.model;
    if (!model.empty() && model != context_.options.model_name) {
      throw ApiError(404, "model", "model_not_found",
                     cat("the model ", quoted(model), " is not served here; ",
                         quoted(context_.options.model_name), " is"));
    }
    if (job->request.session.empty()) return start(job, nullptr);
    job->session_deadline = std::chrono::steady_clock::now() + context_.options.session_wait;
    take_session(job);
  });
}

void CompletionHandler::take_session(const std::shared_ptr<Job>& job) {
  if (job->gone) return;
  answer_errors(job->exchange, [&] {
    auto lease = context_.sessions.acquire({job->tenant, job->request.session});
    if (lease != nullptr) return start(job, std::move(lease));
    if (std::chrono::steady_clock::now() >= job->session_deadline) {
      throw ApiError(409, "session", "session_busy",
                     cat("the session ", job->request.session,
                         " is in use by another request; wait for its reply"));
    }
    context_.post_after(kSessionPoll, [this, job] { take_session(job); });
  });
}

void CompletionHandler::start(const std::shared_ptr<Job>& job,
                              std::unique_ptr<SessionLease> lease) {
  RequestPlan plan = plan_request(context_, job->request, job->tenant, std::move(lease));
  Json fields = {{"stream", job->request.stream}};
  if (!job->request.session.empty()) fields["session"] = job->request.session;
  job->exchange->annotate(std::move(fields));
  const auto call = std::make_shared<GenerationCall>(
      context_, job->exchange, std::move(job->request), std::move(plan),
      [ticket = std::move(job->ticket)]() mutable { ticket.reset(); });
  call->start();
}

}  // namespace laplace
