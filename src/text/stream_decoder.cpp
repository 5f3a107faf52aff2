// StreamDecoder: see tokenizer.h.
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace laplace {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::string StreamDecoder::push(TokenId id) {
  if (id < 0 || id >= tokenizer_.vocab_size() || tokenizer_.is_special(id)) return {};
  held_ += tokenizer_.bytes_of(id);
  std::string text;
  const char* at = held_.data();
  const char* const end = at + held_.size();
  while (at != end) {
    const Utf8Char c = read_utf8(at, end);
    if (c.kind == Utf8Char::Kind::kIncomplete) break;
    if (c.kind == Utf8Char::Kind::kValid) {
      text.append(at, c.length);
    } else {
      text += kReplacement;
    }
    at += c.length;
  }
  held_.erase(0, size_t(at - held_.data()));
  return text;
}

std::string StreamDecoder::finish() {
  const bool some = !held_.empty();  // an incomplete sequence: one maximal subpart
  held_.clear();
  return std::string(some ? kReplacement : "");
}

}  // namespace laplace
