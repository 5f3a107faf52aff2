// Trains a byte-level BPE tokenizer.
//
// Text is cut by GPT-2's pattern (splitter.h); merging never crosses a piece. Then, over and over,
// the pair of neighbouring tokens with the highest count becomes a new token. The count of a pair
// is the number of its places in the text, overlapping ones included; of pairs with equal counts
// the one with the smaller left id goes first, then the one with the smaller right id. A merge
// replaces places from left to right. So the result depends on the text alone: not on threads, nor
// on the order of texts. Hugging Face's BpeTrainer gives the same merges.
//
// Source: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "text/tokenizer.h"

namespace laplace {

struct BpeOptions {
  // 256 bytes, merges, and the special tokens, which take the last ids.
  TokenId vocab_size = 0;
  std::vector<std::string> specials = {"<|endoftext|>"};
  // Pairs with fewer places do not become tokens.
  int64_t min_frequency = 2;
};

// Counts pieces, then trains. Memory: for each distinct piece about 60 bytes and, while merging, 16
// a byte of it; texts themselves are not kept.
class BpeTrainer {
 public:
  // `threads` 0: all cores.
  explicit BpeTrainer(int threads = 0);
  ~BpeTrainer();
  BpeTrainer(const BpeTrainer&) = delete;
  BpeTrainer& operator=(const BpeTrainer&) = delete;

  // Counts the pieces of one text, a large one on all threads. May be called from several threads.
  // Nothing crosses from one text into the next. `progress`, when given, is told of the bytes done.
  void add(std::string_view text, Progress* progress = nullptr);

  // Refuses options that no text can satisfy, as train() does: to be called before long work.
  static void check(const BpeOptions& options);

  // The tokenizer. Stops early with a warning when no pair has min_frequency places. Throws
  // Error(kBadInput) on a vocabulary size that cannot be, or when there was no text at all.
  Tokenizer train(const BpeOptions& options) const;

 private:
  struct Counts;
  std::unique_ptr<Counts> counts_;
  int threads_;
};

}  // namespace laplace
