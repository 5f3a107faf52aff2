// See chat_template.h.
#include "serve/http/chat_template.h"

#include "base/error.h"

namespace laplace {

namespace {

constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>";

void append(std::vector<TokenId>& ids, const std::vector<TokenId>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view name, const Tokenizer& tokenizer)
    : name_(name), tokenizer_(tokenizer) {
  if (name != "plain" && name != "chatml") {
    fail_input("there is no chat template ", quoted(name), "; give plain or chatml");
  }
  if (chatml() && tokenizer.special(kStart) >= 0 && tokenizer.special(kEnd) >= 0) {
    start_ = tokenizer.special(kStart);
    end_ = tokenizer.special(kEnd);
  }
}

std::string ChatTemplate::render(const ChatMessage& message) const {
  if (!chatml()) return message.content + "\n";
  return cat(kStart, message.role, "\n", message.content, kEnd, "\n");
}

std::string ChatTemplate::begin_reply() const {
  return chatml() ? cat(kStart, "assistant\n") : std::string();
}

std::string ChatTemplate::end_reply() const { return chatml() ? cat(kEnd, "\n") : "\n"; }

std::vector<std::string> ChatTemplate::stops() const {
  if (!chatml()) return {"\n\n"};
  return start_ >= 0 ? std::vector<std::string>() : std::vector<std::string>{std::string(kEnd)};
}

std::vector<TokenId> ChatTemplate::stop_ids() const {
  return end_ >= 0 ? std::vector<TokenId>{end_} : std::vector<TokenId>();
}

std::vector<TokenId> ChatTemplate::encode_marks(std::string_view text) const {
  if (start_ < 0) return tokenizer_.encode(text);
  std::vector<TokenId> ids;
  while (!text.empty()) {
    const size_t at = std::min(text.find(kStart), text.find(kEnd));
    append(ids, tokenizer_.encode(text.substr(0, at)));
    if (at == std::string_view::npos) break;
    const bool start = text.substr(at).starts_with(kStart);
    ids.push_back(start ? start_ : end_);
    text.remove_prefix(at + (start ? kStart : kEnd).size());
  }
  return ids;
}

std::vector<TokenId> ChatTemplate::encode_message(const ChatMessage& message) const {
  if (start_ < 0) return tokenizer_.encode(render(message));
  std::vector<TokenId> ids = {start_};
  append(ids, tokenizer_.encode(cat(message.role, "\n", message.content)));
  ids.push_back(end_);
  append(ids, tokenizer_.encode("\n"));
  return ids;
}

}  // namespace laplace
