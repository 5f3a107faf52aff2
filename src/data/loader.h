// Batches for training and validation, as pure functions of a cursor.
//
// A split is one stream of tokens. Window w of length T covers tokens [w T, w T + T]: T inputs and,
// one further, T targets; its last token is the first input of window w + 1, so every token but the
// very first is a target exactly once an epoch. Nothing here has a state: the caller owns the
// cursor, and a run that resumes on any number of ranks sees the samples it would have seen.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "data/dataset.h"

namespace laplace {

struct Batch {
  int64_t rows = 0;                // B
  int64_t length = 0;              // T
  std::vector<int32_t> tokens;     // [B, T + 1]; inputs are [:, :T], targets [:, 1:]
  std::vector<uint8_t> doc_start;  // [B, T], 1 where the input token is the first of a document
  std::vector<int32_t> valid;      // [B], how many targets of the row count; T but for the tail
};

// Shuffled windows. Sample i of the run is window permutation(seed, epoch, i mod n) of epoch
// i div n, where n is samples_per_epoch(). Const members may be called from any number of threads.
class Loader {
 public:
  // `vocab_size` is the model's; ids beyond it are refused when they are read. Throws
  // Error(kBadInput) when the directory, its shards or dataset.json are not sound, or when the
  // split is shorter than one window.
  Loader(const Path& directory, std::string_view split, int64_t length, uint64_t seed,
         int64_t vocab_size);

  // Fills the batch with the samples cursor .. cursor + rows - 1. The global cursor of a step plus
  // a rank's offset gives the rank its slice.
  void fill(uint64_t cursor, int64_t rows, Batch& batch) const;

  int64_t samples_per_epoch() const { return samples_; }
  int64_t length() const { return length_; }
  const TokenStream& stream() const { return stream_; }
  int64_t tokens() const { return stream_.tokens(); }
  std::string fingerprint() const { return stream_.fingerprint(); }
  int64_t text_bytes() const { return stream_.text_bytes(); }
  int32_t end_of_text() const { return stream_.end_of_text(); }

 private:
  TokenStream stream_;
  int64_t length_;
  uint64_t seed_;
  int64_t samples_;
};

// All windows in order, the last one short: every token but the first is a target exactly once, so
// sums over a whole split are exact. Const members may be called from any number of threads.
class SequentialLoader {
 public:
  SequentialLoader(const Path& directory, std::string_view split, int64_t length,
                   int64_t vocab_size);

  int64_t windows() const { return windows_; }
  // Fills the batch with the windows first .. first + rows - 1. What lies beyond the end of the
  // split, in the tail's row and in whole rows, is end-of-text tokens with doc_start 0, and
  // `valid` counts the targets before it (0 for a whole row).
  void fill(int64_t first, int64_t rows, Batch& batch) const;

  int64_t length() const { return length_; }
  const TokenStream& stream() const { return stream_; }
  int64_t tokens() const { return stream_.tokens(); }
  int64_t text_bytes() const { return stream_.text_bytes(); }
  int32_t end_of_text() const { return stream_.end_of_text(); }

 private:
  TokenStream stream_;
  int64_t length_;
  int64_t windows_;
};

}  // namespace laplace
