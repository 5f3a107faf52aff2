// See splitter.h.
#include "data/splitter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "data/text_cut.h"

namespace laplace {

namespace {

constexpr uint64_t kHoldOutStream = 0x686f6c64;  // of the random numbers: "hold"

int64_t size_of(const Piece& piece) { return static_cast<int64_t>(piece.text.size()); }

SplitOptions checked(const SplitOptions& options) {
  if (!(options.val_fraction >= 0 && options.val_fraction < 1)) {
    fail_input("--val-fraction is ", options.val_fraction,
               ", but must be from 0 to less than 1 (0.01 holds out one document in a hundred)");
  }
  if (options.val_last_bytes < 0) {
    fail_input("--val-last-bytes is ", options.val_last_bytes, ", but must not be negative");
  }
  return options;
}

// The latest place at or before `end` where a line starts, 0 when there is none.
size_t line_start(std::string_view text, size_t end) {
  const size_t newline = text.substr(0, end).rfind('\n');
  return newline == std::string_view::npos ? 0 : newline + 1;
}

// A cut for a text without lines: before a word, or at least between two characters.
size_t word_start(std::string_view text, size_t end) {
  const size_t place = certain_cut(text.substr(0, end));
  if (place != 0) return place;
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
    --end;
  }
  return end;
}

}  // namespace

Splitter::Splitter(const Tokenizer& tokenizer, const Path& directory, const SplitOptions& options)
    : tokenizer_(tokenizer),
      options_(checked(options)),
      train_{SplitWriter(directory, std::string(kTrainSplit), tokenizer.vocab_size(),
                         options.shard_tokens),
             {}},
      val_{SplitWriter(directory, std::string(kValSplit), tokenizer.vocab_size(),
                       options.shard_tokens),
           {}},
      current_(&train_) {
  if (tokenizer.end_of_text() < 0) {
    fail_input("the tokenizer has no <|endoftext|> token, which must start every document; add it ",
               "to its special tokens, or train one with `laplace tokenizer train`");
  }
}

// Whether the end of the text may yet be held out.
bool Splitter::holding() const {
  if (options_.val_last_bytes > 0) return true;
  return options_.val_fraction > 0 && !chosen_;
}

// How much of the end would be held out if the text ended here. It never shrinks relative to the
// text's end, so what lies before it may go to the training shards at once.
int64_t Splitter::held_out_bytes() const {
  if (options_.val_last_bytes > 0) return options_.val_last_bytes;
  return static_cast<int64_t>(std::ceil(options_.val_fraction * double(total_bytes_)));
}

void Splitter::add(Piece piece) {
  if (piece.starts_document) {
    current_ = &train_;
    const auto index = static_cast<uint64_t>(documents_++);
    // The first document always trains: whether there are more is not known when it is written.
    const bool by_hash = options_.val_last_bytes == 0 && index > 0;
    if (by_hash && random_uniform(options_.seed, kHoldOutStream, index) < options_.val_fraction) {
      flush(train_);
      chosen_ = true;
      current_ = &val_;
    }
  }
  total_bytes_ += size_of(piece);
  if (!holding()) {
    write(*current_, piece);
    return;
  }
  held_bytes_ += size_of(piece);
  held_.push_back(std::move(piece));
  release();
}

// Lets go of what lies before the end, but for the piece before the one that the cut is in: the
// line that is cut may start there.
void Splitter::release() {
  while (held_.size() > 2 &&
         held_bytes_ - size_of(held_[0]) - size_of(held_[1]) >= held_out_bytes()) {
    write(train_, held_.front());
    held_bytes_ -= size_of(held_.front());
    held_.pop_front();
  }
}

void Splitter::flush(Side& side) {
  for (const Piece& piece : held_) write(side, piece);
  held_.clear();
  held_bytes_ = 0;
}

void Splitter::write(Side& side, const Piece& piece) {
  if (piece.starts_document) {
    const TokenId end_of_text = tokenizer_.end_of_text();
    side.writer.append(std::span(&end_of_text, 1));
    ++side.info.documents;
  }
  side.writer.append(piece.ids);
  side.info.text_bytes += size_of(piece);
}

// The start of the line (or else of the word) that holds the `bytes`-th byte from the end.
Splitter::Place Splitter::find_cut(int64_t bytes) const {
  size_t piece = 0;
  int64_t before = held_bytes_ - bytes;
  while (piece + 1 < held_.size() && before >= size_of(held_[piece])) {
    before -= size_of(held_[piece++]);
  }
  const auto end = static_cast<size_t>(std::max<int64_t>(before, 0));
  for (size_t i = piece + 1; i-- > 0;) {
    const std::string& text = held_[i].text;
    const size_t start = line_start(text, i == piece ? end : text.size());
    if (start == text.size()) return {i + 1, 0};
    if (start > 0) return {i, start};
    const bool everything = i == 0 && train_.writer.tokens() == 0;
    if (held_[i].starts_document && !everything) return {i, 0};
  }
  return {piece, word_start(held_[piece].text, end)};
}

void Splitter::hold_out_tail() {
  const int64_t bytes = held_out_bytes();
  const auto [piece, offset] = find_cut(bytes);
  const bool everything = piece == 0 && offset == 0 && train_.writer.tokens() == 0;
  if (everything || bytes >= total_bytes_) {
    fail_input("holding out the last ", bytes, " of ", total_bytes_, " bytes leaves no text to ",
               "train on; lower --val-last-bytes or --val-fraction, or give more text");
  }
  for (size_t i = 0; i < piece; ++i) write(train_, held_[i]);
  held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(piece));
  if (offset > 0) {
    // The ids at the cut are those of two texts, which may differ from the ids of the whole.
    Piece head = {held_[0].text.substr(0, offset), {}, held_[0].starts_document};
    head.ids = tokenizer_.encode(head.text);
    write(train_, head);
    held_[0].text.erase(0, offset);
    held_[0].ids = tokenizer_.encode(held_[0].text);
  }
  held_[0].starts_document = true;
  flush(val_);
}

DatasetInfo Splitter::finish() {
  if (documents_ == 0) {
    fail_input("the inputs hold no text; name files that do with --input");
  }
  if (holding()) {
    if (options_.val_last_bytes == 0) {
      log_info(
          documents_ == 1 ? "the input is one document" : "no document was chosen for validation",
          "; holding out the last ", options_.val_fraction * 100, " % of the text instead");
    }
    hold_out_tail();
  }
  DatasetInfo info;
  info.tokenizer_fingerprint = fingerprint_text(tokenizer_.fingerprint());
  info.vocab_size = tokenizer_.vocab_size();
  info.end_of_text = tokenizer_.end_of_text();
  for (Side* const side : {&train_, &val_}) {
    side->writer.finish();
    side->info.tokens = side->writer.tokens();
    side->info.shards = side->writer.shards();
  }
  info.train = train_.info;
  info.val = val_.info;
  return info;
}

}  // namespace laplace
