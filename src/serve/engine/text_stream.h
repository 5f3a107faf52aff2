// From generated ids to the text that may leave: whole characters, and never a stop string.
//
// Text that could be the beginning of a stop string is held back until that is decided. What leaves
// depends on the text alone, not on where the borders between tokens lie: generation ends at the
// first character that completes some stop string, and the text before the longest stop string that
// ends there is the result.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace laplace {

// Not thread-safe. Copies are independent.
class StopFilter {
 public:
  // Throws Error(kBadInput) for a stop string that is empty or not UTF-8.
  explicit StopFilter(std::vector<std::string> stops);

  // The text that may leave now that `text` has come. Nothing leaves after a stop.
  std::string push(std::string_view text);
  // What was held back; the filter is then as new.
  std::string finish();
  // A stop string has been seen.
  bool stopped() const { return stopped_; }
  // Which one; empty before.
  const std::string& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string matched_;
  std::string held_;  // shorter than the longest stop string
  bool stopped_ = false;
};

// StreamDecoder and StopFilter, one behind the other.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops)
      : decoder_(tokenizer), filter_(std::move(stops)) {}

  std::string push(TokenId id) { return filter_.push(decoder_.push(id)); }
  // Of a token that may end nothing: no stop string is looked for in its text. None of those before
  // it was pushed otherwise.
  std::string push_early(TokenId id) { return decoder_.push(id); }
  // What was held back, an incomplete character as U+FFFD; the stream is then as new.
  std::string finish();
  bool stopped() const { return filter_.stopped(); }
  const std::string& matched() const { return filter_.matched(); }

 private:
  StreamDecoder decoder_;
  StopFilter filter_;
};

}  // namespace laplace
