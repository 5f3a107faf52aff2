// See completion_handler.h.
#include "serve/http/completion_handler.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "serve/http/generation_call.h"
#include "serve/http/handlers_common.h"

namespace laplace {

namespace {

// Between two looks at a session that is in use.
constexpr std::chrono::milliseconds kSessionPoll{20};

}  // namespace

struct CompletionHandler::Job {
  std::shared_ptr<Exchange> exchange;
  std::string tenant;
  bool chat;
  std::shared_ptr<void> ticket;
  std::unique_ptr<SessionLease> lease;
  CompletionRequest request;
  std::chrono::steady_clock::time_point session_deadline;
  std::atomic<bool> gone{false};  // the client
};

void CompletionHandler::handle(std::shared_ptr<Exchange> exchange, const std::string& tenant,
                               bool chat) {
  if (context_.draining) {
    throw ApiError(503, "", "stopping", "the server is stopping; send the request to another");
  }
  const auto job = std::make_shared<Job>();
  job->exchange = std::move(exchange);
  job->tenant = tenant;
  job->chat = chat;
  job->ticket = context_.tickets.take(tenant);
  // Until the call takes over, nothing is running that would have to be cancelled.
  job->exchange->on_closed([job] { job->gone = true; });
  context_.post_request([this, job] { read(job); });
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
    if (job->request.session.empty()) return start(job);
    job->session_deadline = std::chrono::steady_clock::now() + context_.options.session_wait;
    context_.post_to_store([this, job] { take_session(job); });
  });
}

void CompletionHandler::take_session(const std::shared_ptr<Job>& job) {
  if (job->gone) return;
  answer_errors(job->exchange, [&] {
    job->lease = context_.sessions.acquire({job->tenant, job->request.session});
    if (job->lease != nullptr) {
      return context_.post([this, job] { answer_errors(job->exchange, [&] { start(job); }); });
    }
    if (std::chrono::steady_clock::now() >= job->session_deadline) {
      throw ApiError(409, "session", "session_busy",
                     cat("the session ", job->request.session,
                         " is in use by another request; wait for its reply"));
    }
    context_.post_to_store_after(kSessionPoll, [this, job] { take_session(job); });
  });
}

void CompletionHandler::start(const std::shared_ptr<Job>& job) {
  RequestPlan plan = plan_request(context_, job->request, job->tenant, std::move(job->lease));
  Json fields = {{"stream", job->request.stream}};
  if (!job->request.session.empty()) fields["session"] = job->request.session;
  job->exchange->annotate(std::move(fields));
  const auto call = std::make_shared<GenerationCall>(
      context_, job->exchange, std::move(job->request), std::move(plan),
      [ticket = std::move(job->ticket)]() mutable { ticket.reset(); });
  call->start();
}

}  // namespace laplace
