// See loader.h.
#include "data/loader.h"

#include <algorithm>

#include "base/error.h"
#include "base/random.h"

namespace laplace {

namespace {

void resize(Batch& batch, int64_t rows, int64_t length) {
  if (rows < 0) fail("a batch cannot have ", rows, " rows");
  batch.rows = rows;
  batch.length = length;
  batch.tokens.resize(static_cast<size_t>(rows * (length + 1)));
  batch.doc_start.resize(static_cast<size_t>(rows * length));
  batch.valid.resize(static_cast<size_t>(rows));
}

// Fills one row from the window that starts at token `begin`; beyond the stream it is padded.
void fill_row(const TokenStream& stream, int64_t begin, int64_t row, Batch& batch) {
  const int64_t length = batch.length;
  const auto tokens =
      std::span(batch.tokens)
          .subspan(static_cast<size_t>(row * (length + 1)), static_cast<size_t>(length + 1));
  const auto starts = std::span(batch.doc_start)
                          .subspan(static_cast<size_t>(row * length), static_cast<size_t>(length));
  const int64_t targets = std::clamp<int64_t>(stream.tokens() - begin - 1, 0, length);
  const auto real = static_cast<size_t>(targets > 0 ? targets + 1 : 0);
  stream.read(targets > 0 ? begin : 0, tokens.first(real));
  std::ranges::fill(tokens.subspan(real), stream.end_of_text());
  for (size_t t = 0; t < starts.size(); ++t) {
    starts[t] = t < real && tokens[t] == stream.end_of_text() ? 1 : 0;
  }
  batch.valid[static_cast<size_t>(row)] = static_cast<int32_t>(targets);
}

int64_t checked_length(int64_t length) {
  if (length < 1 || length >= INT32_MAX) {
    fail_input("the sequence length is ", length, ", but must be from 1 to ", INT32_MAX - 1);
  }
  return length;
}

}  // namespace

Loader::Loader(const Path& directory, std::string_view split, int64_t length, uint64_t seed,
               int64_t vocab_size)
    : stream_(directory, split, vocab_size),
      length_(checked_length(length)),
      seed_(seed),
      samples_((stream_.tokens() - 1) / length_) {
  if (samples_ < 1) {
    fail_input(stream_.name(), " has ", stream_.tokens(), " tokens, too few for one sequence of ",
               length_, " and its last target; shorten the sequences or prepare more data");
  }
}

void Loader::fill(uint64_t cursor, int64_t rows, Batch& batch) const {
  resize(batch, rows, length_);
  const auto n = static_cast<uint64_t>(samples_);
  for (int64_t row = 0; row < rows; ++row) {
    const uint64_t sample = cursor + static_cast<uint64_t>(row);
    const uint64_t window = random_permutation(seed_, sample / n, n, sample % n);
    fill_row(stream_, static_cast<int64_t>(window) * length_, row, batch);
  }
}

SequentialLoader::SequentialLoader(const Path& directory, std::string_view split, int64_t length,
                                   int64_t vocab_size)
    : stream_(directory, split, vocab_size),
      length_(checked_length(length)),
      windows_((stream_.tokens() - 1 + length_ - 1) / length_) {
  if (windows_ < 1) {
    fail_input(stream_.name(), " has one token only, nothing to predict; prepare more data");
  }
}

void SequentialLoader::fill(int64_t first, int64_t rows, Batch& batch) const {
  if (first < 0) fail("there is no window ", first);
  resize(batch, rows, length_);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t window = std::min(first + row, windows_);  // `windows_` lies beyond the end
    fill_row(stream_, window * length_, row, batch);
  }
}

}  // namespace laplace
