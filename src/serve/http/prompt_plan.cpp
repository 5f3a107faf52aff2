// See prompt_plan.h.
#include "serve/http/prompt_plan.h"

#include <algorithm>
#include <utility>

#include "serve/http/api_error.h"
#include "serve/http/service_context.h"

namespace laplace {

namespace {

// States that one prompt leaves in the prefix cache.
constexpr int64_t kMostSnapshots = 6;

// The ids of a request before any state is looked up.
struct Tokens {
  std::vector<TokenId> ids;
  std::vector<int64_t> boundaries;  // ends of messages
  bool hides_first = false;

  void add(const std::vector<TokenId>& more) { ids.insert(ids.end(), more.begin(), more.end()); }
};

// A document begins with the end-of-text token, as in the training data.
void begin_document(const ServiceContext& context, const CompletionRequest& request,
                    Tokens& tokens) {
  const TokenId end_of_text = context.backend.model().end_of_text;
  if (end_of_text < 0 || !request.add_end_of_text) return;
  tokens.ids.push_back(end_of_text);
  tokens.hides_first = true;
}

void need_tokens(const Tokens& tokens) {
  if (!tokens.ids.empty()) return;
  fail_field("prompt",
             "the prompt is empty, and there is no end-of-text token to begin from; give a text");
}

Tokens completion_tokens(const ServiceContext& context, const CompletionRequest& request,
                         const PromptInput& prompt, bool continues) {
  Tokens tokens;
  const auto* const text = std::get_if<std::string>(&prompt);
  const auto* const ids = std::get_if<std::vector<TokenId>>(&prompt);
  // A list of ids is taken as it is; an empty one begins a document, as an empty text does.
  if (!continues && (text != nullptr || ids->empty())) begin_document(context, request, tokens);
  tokens.add(text != nullptr ? context.tokenizer.encode(*text) : *ids);
  if (!continues) need_tokens(tokens);
  return tokens;
}

Tokens chat_tokens(const ServiceContext& context, const CompletionRequest& request,
                   std::span<const ChatMessage> messages, const std::string& pending,
                   bool continues) {
  Tokens tokens;
  if (!continues) begin_document(context, request, tokens);
  tokens.add(context.chat.encode_marks(pending));
  // Piece by piece, so that the ids of a message do not depend on what follows it.
  for (const ChatMessage& message : messages) {
    tokens.add(context.chat.encode_message(message));
    tokens.boundaries.push_back(int64_t(tokens.ids.size()));
  }
  tokens.add(context.chat.encode_begin_reply());
  return tokens;
}

std::string echo_text(const ServiceContext& context, const PromptInput& prompt) {
  if (const auto* const text = std::get_if<std::string>(&prompt)) return *text;
  StreamDecoder decoder(context.tokenizer);
  std::string text;
  for (const TokenId id : std::get<std::vector<TokenId>>(prompt)) text += decoder.push(id);
  return text + decoder.finish();
}

// What an answer holds of its prompts: a short request could ask for hundreds of megabytes.
void check_echo(const ApiLimits& limits, const CompletionRequest& request,
                const RequestPlan& plan) {
  int64_t tokens = 0;
  for (const PromptPlan& prompt : plan.prompts) tokens += int64_t(prompt.ids.size());
  const int64_t entries = tokens * (request.log_probs + 1) * request.n;
  if (entries > limits.max_echo_log_probs) {
    fail_field("logprobs", "the echo of ", tokens, " tokens with logprobs ", request.log_probs,
               " and n ", request.n, " has ", entries, " log-probabilities, but at most ",
               limits.max_echo_log_probs, " are shown; ask for fewer");
  }
}

// A prompt that begins anew: what is known of its beginning is not read again.
PromptPlan plan_fresh(ServiceContext& context, const CompletionRequest& request,
                      const std::string& scope, Tokens tokens) {
  PromptPlan plan;
  plan.hides_first = tokens.hides_first;
  const bool needs_all = request.echo && request.log_probs >= 0;
  if (!context.prefixes.on() || needs_all) {
    plan.ids = std::move(tokens.ids);
    return plan;
  }
  const PrefixCache::Hit hit = context.prefixes.longest(scope, tokens.ids);
  plan.from = hit.snapshot;
  plan.cached = hit.tokens;
  const int64_t length = int64_t(tokens.ids.size());
  plan.snapshot_at = snapshot_places(length, hit.tokens, tokens.boundaries, kMostSnapshots);
  for (int64_t& place : plan.snapshot_at) place -= hit.tokens;
  plan.ids.assign(tokens.ids.begin() + hit.tokens, tokens.ids.end());
  plan.all_ids = std::make_shared<const std::vector<TokenId>>(std::move(tokens.ids));
  return plan;
}

PromptPlan plan_continued(const SessionRecord& record, Tokens tokens) {
  PromptPlan plan;
  plan.from = record.snapshot;
  plan.cached = record.snapshot->position;
  plan.ids = std::move(tokens.ids);
  return plan;
}

std::string chain_of(const ServiceContext& context, std::string chain,
                     std::span<const ChatMessage> messages) {
  for (const ChatMessage& message : messages) {
    chain = message_chain(chain, context.chat.render(message));
  }
  return chain;
}

// Whether `messages` begin with the whole conversation that `record` stands for.
bool begins_with(const ServiceContext& context, const SessionRecord& record,
                 std::span<const ChatMessage> messages) {
  return record.messages <= int64_t(messages.size()) &&
         chain_of(context, "", messages.first(size_t(record.messages))) == record.chain;
}

[[noreturn]] void refuse_state(const std::string& refusal) {
  throw ApiError(
      409, "session", "session_refused",
      cat(refusal, "; or send the whole conversation with \"session_input\": \"whole\""));
}

void plan_chat(ServiceContext& context, const CompletionRequest& request, RequestPlan& plan) {
  const std::span<const ChatMessage> messages(request.messages);
  const SessionRecord* record = plan.lease ? plan.lease->record().get() : nullptr;
  const bool has_reply = std::ranges::any_of(
      messages, [](const ChatMessage& message) { return message.role == "assistant"; });
  const bool whole = request.session_input == SessionInput::kWhole ||
                     (request.session_input == SessionInput::kAuto && has_reply);
  plan.session_form = "chat:" + context.chat.name();
  if (record != nullptr && record->form != plan.session_form) {
    if (!whole) {
      refuse_state(cat("the session ", request.session, " holds ", quoted(record->form), ", not ",
                       quoted(plan.session_form)));
    }
    record = nullptr;
  }
  if (plan.lease && !plan.lease->refusal().empty() && !whole) refuse_state(plan.lease->refusal());
  if (record != nullptr && request.session_input != SessionInput::kNew &&
      begins_with(context, *record, messages)) {
    const auto rest = messages.subspan(size_t(record->messages));
    plan.prompts.push_back(
        plan_continued(*record, chat_tokens(context, request, rest, record->pending, true)));
    plan.session_messages = int64_t(messages.size());
    plan.session_chain = chain_of(context, record->chain, rest);
  } else if (record != nullptr && !whole) {
    plan.prompts.push_back(
        plan_continued(*record, chat_tokens(context, request, messages, record->pending, true)));
    plan.session_messages = record->messages + int64_t(messages.size());
    plan.session_chain = chain_of(context, record->chain, messages);
  } else {
    record = nullptr;  // begins anew from the text
    plan.prompts.push_back(plan_fresh(context, request, plan.scope,
                                      chat_tokens(context, request, messages, "", false)));
    plan.session_messages = int64_t(messages.size());
    if (plan.lease) plan.session_chain = chain_of(context, "", messages);
  }
  plan.session_turns = record != nullptr ? record->info.turns : 0;
  for (std::string& stop : context.chat.stops()) plan.stops.push_back(std::move(stop));
  for (const TokenId id : context.chat.stop_ids()) plan.stop_token_ids.push_back(id);
}

void plan_completion(ServiceContext& context, const CompletionRequest& request, RequestPlan& plan) {
  const SessionRecord* record = plan.lease ? plan.lease->record().get() : nullptr;
  plan.session_form = "text";
  if (request.session_input == SessionInput::kWhole) {
    record = nullptr;
  } else if (plan.lease && !plan.lease->refusal().empty()) {
    refuse_state(plan.lease->refusal());
  } else if (record != nullptr && record->form != plan.session_form) {
    refuse_state(cat("the session ", request.session, " is a chat"));
  }
  for (const PromptInput& prompt : request.prompts) {
    Tokens tokens = completion_tokens(context, request, prompt, record != nullptr);
    plan.prompts.push_back(record != nullptr
                               ? plan_continued(*record, std::move(tokens))
                               : plan_fresh(context, request, plan.scope, std::move(tokens)));
    if (request.echo) plan.prompts.back().text = echo_text(context, prompt);
  }
  if (request.echo && request.log_probs >= 0) check_echo(context.options.limits, request, plan);
  plan.session_turns = record != nullptr ? record->info.turns : 0;
}

}  // namespace

RequestPlan plan_request(ServiceContext& context, const CompletionRequest& request,
                         const std::string& tenant, std::unique_ptr<SessionLease> lease) {
  RequestPlan plan;
  plan.scope = cat(tenant, "\n", request.cache_salt);
  plan.stops = request.stops;
  plan.stop_token_ids = request.stop_token_ids;
  plan.lease = std::move(lease);
  request.chat ? plan_chat(context, request, plan) : plan_completion(context, request, plan);
  return plan;
}

}  // namespace laplace
