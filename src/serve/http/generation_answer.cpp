// See generation_call.h: the end of an answer, and what is recorded of it.
#include <algorithm>
#include <utility>

#include "serve/http/generation_call.h"

namespace laplace {

std::optional<ApiError> GenerationCall::failure() const {
  for (const Choice& choice : choices_) {
    switch (choice.finish.reason) {
      case FinishReason::kError:
        return ApiError(500, "", "engine_error", choice.finish.error);
      case FinishReason::kDeadline:
        return ApiError(504, "", "deadline", "the request took longer than the server allows");
      case FinishReason::kCancelled:
        return ApiError(503, "", "stopping", "the server is stopping; send the request again");
      default:
        break;
    }
  }
  return std::nullopt;
}

void GenerationCall::all_finished() {
  unfinished_ = SIZE_MAX;  // never again
  observe();
  if (const auto error = failure()) {
    drop_lease();  // the session is what it was
    return answer_error(*error);
  }
  if (!commit_session()) conclude();
}

// Whether the answer's end waits for it: what a client has seen whole survives the process.
bool GenerationCall::commit_session() {
  std::shared_ptr<const SequenceSnapshot> state;
  {
    const std::lock_guard lock(mutex_);
    state = std::move(end_state_);
  }
  if (plan_.lease == nullptr || state == nullptr) return false;
  SessionRecord record;
  record.form = plan_.session_form;
  record.info.turns = plan_.session_turns + 1;
  record.snapshot = std::move(state);
  if (request_.chat) {
    const std::string& reply = choices_[0].text;
    record.messages = plan_.session_messages + 1;
    record.chain = message_chain(plan_.session_chain, context_.chat.render({"assistant", reply}));
    // The state has been fed the tokens of a stop string too: only what it lacks is pending.
    fed_text_ += fed_->finish();
    record.pending = context_.chat.end_reply();
    if (fed_text_.size() > reply.size()) {
      const auto fed =
          std::ranges::mismatch(std::string_view(fed_text_).substr(reply.size()), record.pending);
      record.pending.erase(record.pending.begin(), fed.in2);
    }
  }
  context_.sessions.commit(
      std::move(plan_.lease), std::move(record), [call = shared_from_this()](bool saved) {
        call->exchange_->post([call, saved] {
          if (saved) return call->conclude();
          call->exchange_->annotate({{"session_saved", false}});
          call->answer_error(
              ApiError(503, "session", "session_not_saved",
                       "the reply could not be saved, so the session stands where it "
                       "was; try again"));
        });
      });
  return true;
}

void GenerationCall::conclude() {
  if (!request_.stream && request_.log_probs >= 0) {  // it may take long
    return context_.post([call = shared_from_this()] { call->answer_whole(); });
  }
  if (!request_.stream) return answer_whole();
  std::string out;
  if (request_.stream_usage != StreamUsage::kNone) out += format_.usage_chunk(usage());
  exchange_->write(out + ReplyFormat::done());
  exchange_->finish();
}

void GenerationCall::answer_error(const ApiError& error) {
  if (!stream_open_) return exchange_->respond(error_response(error));
  exchange_->write(ReplyFormat::error_chunk(error.body()) + ReplyFormat::done());
  exchange_->finish();
}

void GenerationCall::answer_whole() {
  Json list = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    Json log_probs;
    if (choice.legacy) {
      log_probs = choice.legacy->take();
    } else if (request_.log_probs >= 0) {
      log_probs = chat_log_probs(context_.tokenizer, choice.tokens, request_.log_probs);
    }
    list.push_back(format_.choice(int(i), std::move(choice.text), std::move(log_probs),
                                  finish_reason_name(choice.finish.reason)));
  }
  exchange_->respond({200, "application/json", format_.whole(std::move(list), usage()), {}});
}

Usage GenerationCall::usage() const {
  Usage usage;
  for (const PromptPlan& plan : plan_.prompts) {
    usage.prompt_tokens += plan.cached + int64_t(plan.ids.size());
    usage.cached_tokens += plan.cached;
  }
  usage.completion_tokens = generated_;
  return usage;
}

void GenerationCall::observe() {
  const auto now = std::chrono::steady_clock::now();
  const auto arrival = exchange_->request().received;
  const Usage used = usage();
  RequestTimes times;
  times.total = seconds_between(arrival, now);
  times.queue = seconds_between(arrival, submitted_);
  if (first_token_) {
    times.first_token = seconds_between(arrival, *first_token_);
    times.decode = seconds_between(*first_token_, *last_token_);
  }
  times.prompt_tokens = used.prompt_tokens;
  times.generated_tokens = used.completion_tokens;
  times.cached_tokens = used.cached_tokens;
  times.max_tokens = request_.max_tokens;
  times.n = request_.n;
  context_.metrics.observe(times);
  Json fields = {{"prompt_tokens", used.prompt_tokens},
                 {"cached_tokens", used.cached_tokens},
                 {"completion_tokens", used.completion_tokens}};
  if (first_token_) fields["first_token_seconds"] = times.first_token;
  exchange_->annotate(std::move(fields));
}

}  // namespace laplace
