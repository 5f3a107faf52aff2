// See generation_call.h: from the engine to chunks; generation_answer.cpp ends the answer.
#include "serve/http/generation_call.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "serve/http/request_id.h"

namespace laplace {

// Of one prompt of the call; its indices are choices from `first` on.
class GenerationCall::PromptSink : public Sink {
 public:
  PromptSink(std::shared_ptr<GenerationCall> call, size_t prompt)
      : call_(std::move(call)), prompt_(prompt), first_(int(prompt) * call_->request_.n) {}

  void on_prompt(std::span<const TokenResult> tokens) override {
    Report report = make(Report::Kind::kPrompt, 0);
    report.tokens.assign(tokens.begin(), tokens.end());
    call_->report(std::move(report));
  }

  void on_token(int index, const TokenResult& token, std::string_view text) override {
    Report report = make(Report::Kind::kToken, index);
    report.tokens.push_back(token);
    report.text = text;
    call_->report(std::move(report));
  }

  void on_snapshot(int, int64_t prompt_offset,
                   std::shared_ptr<const SequenceSnapshot> snapshot) override {
    if (prompt_offset >= 0) {
      call_->keep_prefix(prompt_, prompt_offset, std::move(snapshot));
    } else {
      const std::lock_guard lock(call_->mutex_);
      call_->end_state_ = std::move(snapshot);
    }
  }

  void on_finish(int index, const Finish& finish) override {
    Report report = make(Report::Kind::kFinish, index);
    report.finish = finish;
    call_->report(std::move(report));
  }

 private:
  Report make(Report::Kind kind, int index) const {
    Report report;
    report.kind = kind;
    report.choice = first_ + index;
    report.at = std::chrono::steady_clock::now();
    return report;
  }

  const std::shared_ptr<GenerationCall> call_;
  const size_t prompt_;
  const int first_;
};

GenerationCall::GenerationCall(ServiceContext& context, std::shared_ptr<Exchange> exchange,
                               CompletionRequest request, RequestPlan plan,
                               std::function<void()> over)
    : context_(context),
      exchange_(std::move(exchange)),
      request_(std::move(request)),
      plan_(std::move(plan)),
      over_(std::move(over)),
      format_(request_.chat, request_.stream, request_.stream_usage,
              random_name(request_.chat ? "chatcmpl-" : "cmpl-"), int64_t(std::time(nullptr)),
              context.options.model_name),
      scoring_(request_.echo && request_.log_probs >= 0),
      prompt_tokens_(plan_.prompts.size()),
      choices_(plan_.prompts.size() * size_t(request_.n)),
      unfinished_(choices_.size()) {
  for (Choice& choice : choices_) {
    if (!request_.chat && request_.log_probs >= 0) {
      choice.legacy.emplace(context_.tokenizer, request_.log_probs);
    }
  }
  if (plan_.lease) fed_.emplace(context_.tokenizer);
}

GenerationCall::~GenerationCall() {
  drop_lease();
  over_();
}

// Giving a session back may wait for the store, which neither the engine nor a connection may.
void GenerationCall::drop_lease() {
  if (plan_.lease == nullptr) return;
  context_.post_to_store(
      [lease = std::shared_ptr<SessionLease>(std::move(plan_.lease))]() mutable { lease.reset(); });
}

Request GenerationCall::engine_request(const PromptPlan& plan) const {
  Request out;
  out.prompt = plan.ids;
  out.from = plan.from;
  out.sampling = request_.sampling;
  out.max_tokens = request_.max_tokens;
  out.min_tokens = request_.min_tokens;
  out.ignore_end_of_text = request_.ignore_end_of_text;
  out.stop_token_ids = plan_.stop_token_ids;
  out.logit_bias = request_.logit_bias;
  out.allowed_ids = request_.allowed_ids;
  out.stops = plan_.stops;
  out.top_log_probs = request_.log_probs;
  out.prompt_log_probs = request_.echo && request_.log_probs >= 0;
  out.n = request_.n;
  out.snapshot_at = plan.snapshot_at;
  out.snapshot_at_end = plan_.lease != nullptr;
  if (context_.options.max_time.count() > 0) {
    out.deadline = exchange_->request().received + context_.options.max_time;
  }
  return out;
}

void GenerationCall::start() {
  if (int64_t(choices_.size()) > context_.backend.most_sequences()) {
    throw ApiError(400, "prompt", "invalid_value",
                   cat("the prompts times n are ", choices_.size(), " sequences, but at most ",
                       context_.backend.most_sequences(), " may run and wait; ask for fewer"));
  }
  exchange_->on_closed([call = shared_from_this()] { call->cancel(); });
  submitted_ = std::chrono::steady_clock::now();
  try {
    for (size_t i = 0; i < plan_.prompts.size(); ++i) {
      const auto sink = std::make_shared<PromptSink>(shared_from_this(), i);
      const RequestId id = context_.backend.submit(engine_request(plan_.prompts[i]), sink);
      const std::lock_guard lock(mutex_);
      ids_.push_back(id);
      if (cancelled_) context_.backend.cancel(id);
    }
  } catch (const Error& error) {
    {
      const std::lock_guard lock(mutex_);
      abandoned_ = true;
    }
    cancel();
    const auto* const refused = dynamic_cast<const Refused*>(&error);
    if (refused == nullptr) throw ApiError(400, "", "invalid_value", error.what());
    const bool stopping = refused->reason() == Refused::Reason::kStopping;
    throw ApiError(stopping ? 503 : 429, "", stopping ? "stopping" : "queue_full", error.what());
  }
  // Not with scoring: what says that a stream is quiet is not in the exchange's sequence then.
  if (request_.stream && !scoring_ && context_.options.heartbeat.count() > 0) keep_awake();
}

void GenerationCall::cancel() {
  std::vector<RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    ids = ids_;
  }
  for (const RequestId id : ids) context_.backend.cancel(id);
}

void GenerationCall::report(Report report) {
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) return;
    reports_.push_back(std::move(report));
    if (std::exchange(scheduled_, true)) return;
  }
  auto take = [call = shared_from_this()] { call->take_reports(); };
  scoring_ ? context_.post(std::move(take)) : exchange_->post(std::move(take));
}

void GenerationCall::keep_prefix(size_t prompt, int64_t offset,
                                 std::shared_ptr<const SequenceSnapshot> state) {
  const PromptPlan& plan = plan_.prompts[prompt];
  if (plan.all_ids == nullptr) return;
  context_.post([&context = context_, scope = plan_.scope, ids = plan.all_ids,
                 length = plan.cached + offset, state = std::move(state)]() mutable {
    context.prefixes.insert(scope, std::move(ids), length, std::move(state));
  });
}

void GenerationCall::take_reports() {
  const std::lock_guard order(taking_);
  std::vector<Report> reports;
  {
    const std::lock_guard lock(mutex_);
    scheduled_ = false;
    reports.swap(reports_);
  }
  std::string out;
  for (Report& report : reports) take(report, out);
  // Echoes leave in one piece: together they may be more than a client may leave unread.
  if (scoring_) {
    held_ += out;
    out.clear();
    if (std::ranges::all_of(choices_, [](const Choice& c) { return c.begun; })) out.swap(held_);
  }
  if (request_.stream && !out.empty()) send(std::move(out));
  if (unfinished_ == 0) all_finished();
}

void GenerationCall::send(std::string out) {
  quiet_ = false;
  if (std::exchange(stream_open_, true)) return exchange_->write(std::move(out));
  exchange_->open_stream({200,
                          "text/event-stream; charset=utf-8",
                          std::move(out),
                          {{"cache-control", "no-cache"}, {"x-accel-buffering", "no"}}});
}

// A long prompt is silence that clients and proxies take for a dead connection: a comment, which
// clients pass over, tells them otherwise.
void GenerationCall::keep_awake() {
  exchange_->post_after(context_.options.heartbeat, [weak = weak_from_this()] {
    const auto call = weak.lock();
    if (call == nullptr || call->unfinished_ == SIZE_MAX) return;
    if (call->quiet_) call->send(": reading the prompt\n\n");
    call->quiet_ = true;
    call->keep_awake();
  });
}

void GenerationCall::take(Report& report, std::string& out) {
  Choice& choice = choices_[size_t(report.choice)];
  switch (report.kind) {
    case Report::Kind::kPrompt: {
      auto& tokens = prompt_tokens_[size_t(report.choice / request_.n)];
      tokens.insert(tokens.end(), report.tokens.begin(), report.tokens.end());
      break;
    }
    case Report::Kind::kToken:
      on_token(report.choice, choice, report, out);
      break;
    case Report::Kind::kFinish:
      on_finish(report.choice, choice, report, out);
      break;
  }
}

// What comes before the first token: the role of a chat, the echo of a prompt.
void GenerationCall::begin(int index, Choice& choice, std::string& out) {
  if (std::exchange(choice.begun, true)) return;
  if (request_.chat) {
    if (request_.stream) out += format_.role_chunk(index, usage());
    return;
  }
  if (!request_.echo) return;
  const size_t prompt = size_t(index / request_.n);
  const PromptPlan& plan = plan_.prompts[prompt];
  if (choice.legacy) {
    const auto& tokens = prompt_tokens_[prompt];
    for (size_t i = plan.hides_first ? 1 : 0; i < tokens.size(); ++i) choice.legacy->add(tokens[i]);
    choice.legacy->end_prompt();
  }
  if (request_.stream) {
    out += format_.text_chunk(index, plan.text, choice.legacy ? choice.legacy->take() : Json(), "",
                              usage());
  } else {
    choice.text = plan.text;
  }
}

Json GenerationCall::token_log_probs(Choice& choice, const TokenResult& token) {
  if (request_.log_probs < 0) return nullptr;
  if (choice.legacy) {
    choice.legacy->add(token);
    return request_.stream ? choice.legacy->take() : Json();
  }
  if (request_.stream) {
    return chat_log_probs(context_.tokenizer, {&token, 1}, request_.log_probs);
  }
  choice.tokens.push_back(token);
  return nullptr;
}

void GenerationCall::on_token(int index, Choice& choice, Report& report, std::string& out) {
  begin(index, choice, out);
  if (!first_token_) first_token_ = report.at;
  if (choice.last_token) {
    context_.metrics.inter_token.observe(seconds_between(*choice.last_token, report.at));
  }
  last_token_ = choice.last_token = report.at;
  ++generated_;
  const TokenResult& token = report.tokens.front();
  const Json log_probs = token_log_probs(choice, token);
  if (request_.stream) out += format_.text_chunk(index, report.text, log_probs, "", usage());
  if (!request_.stream || fed_) choice.text += report.text;
  if (fed_) fed_text_ += fed_->push(token.id);
}

void GenerationCall::on_finish(int index, Choice& choice, Report& report, std::string& out) {
  if (std::exchange(choice.finished, true)) return;
  --unfinished_;
  choice.finish = std::move(report.finish);
  const std::string_view reason = finish_reason_name(choice.finish.reason);
  context_.metrics.count_finish(reason == "cancelled" ? "abort" : reason);
  const bool whole =
      choice.finish.reason == FinishReason::kStop || choice.finish.reason == FinishReason::kLength;
  if (!whole) return;
  begin(index, choice, out);
  if (request_.stream) {
    out += format_.text_chunk(index, choice.finish.text, nullptr, reason, usage());
  }
  if (!request_.stream || fed_) choice.text += choice.finish.text;
}

}  // namespace laplace
