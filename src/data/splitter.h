// Deals tokenized documents, in the order of the input, to the training and the validation shards.
//
// Two ways. By documents: document i is held out when a hash of (seed, i) falls below the fraction,
// so that the choice does not depend on threads and stays put when documents are added behind. By
// text: the last bytes of the input are held out, cut at the start of a line. The first way falls
// back to the second when it chose nothing, as with a corpus that is one document.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "text/tokenizer.h"

namespace laplace {

struct SplitOptions {
  double val_fraction = 0.01;  // in [0, 1)
  int64_t val_last_bytes = 0;  // above 0: by text, and val_fraction does not matter
  uint64_t seed = 0;
  int64_t shard_tokens = 100'000'000;
};

// A document or part of one. Ids of parts, one after another, are those of the whole.
struct Piece {
  std::string text;
  std::vector<TokenId> ids;  // of the text alone
  bool starts_document = true;
};

class Splitter {
 public:
  // Writes the shards into `directory`.
  Splitter(const Tokenizer& tokenizer, const Path& directory, const SplitOptions& options);

  void add(Piece piece);
  int64_t documents() const { return documents_; }  // added so far
  // Completes the shards. Throws Error(kBadInput) when there was no text, or none is left to train.
  DatasetInfo finish();

 private:
  struct Side {
    SplitWriter writer;
    SplitInfo info;
  };
  // A place in held_: byte `offset` of piece `piece`.
  struct Place {
    size_t piece;
    size_t offset;
  };

  bool holding() const;
  int64_t held_out_bytes() const;
  void release();
  void flush(Side& side);
  void write(Side& side, const Piece& piece);
  Place find_cut(int64_t bytes) const;
  void hold_out_tail();

  const Tokenizer tokenizer_;
  const SplitOptions options_;
  Side train_;
  Side val_;
  Side* current_ = nullptr;  // of the document that is being dealt
  bool chosen_ = false;      // a document was held out by its hash
  int64_t documents_ = 0;
  int64_t total_bytes_ = 0;
  std::deque<Piece> held_;  // the end of the text so far, while its fate is open
  int64_t held_bytes_ = 0;
};

}  // namespace laplace
