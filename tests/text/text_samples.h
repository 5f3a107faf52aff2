// Texts and tokenizers that several tests use.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "text/tokenizer.h"

namespace laplace::testing_text {

// GPT-2's tokenizer from LAPLACE_GPT2_VOCAB or shared/data/gpt2 beside the sources; it is not ours
// to ship. Nothing, with a loud line on stderr, when it is in neither.
std::optional<Tokenizer> gpt2();

// Deterministic text with English, code, digits, many scripts, white space and broken UTF-8.
std::string mixed_text(uint64_t seed, size_t bytes);

// A tokenizer trained on such text.
Tokenizer small_tokenizer(TokenId vocab_size = 600);

// BPE as it is defined: the leftmost pair of the lowest rank, again and again.
std::vector<TokenId> encode_slowly(const Tokenizer& tokenizer, std::string_view text);

// An empty directory of this test case, removed with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const Path& path() const { return path_; }

 private:
  Path path_;
};

}  // namespace laplace::testing_text
