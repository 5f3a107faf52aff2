// See bpe_train.h: counting pieces, and the steps of training.
#include "text/bpe_train.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/strings.h"
#include "base/threads.h"
#include "text/pair_merges.h"
#include "text/splitter.h"
#include "text/unicode.h"

namespace laplace {

namespace {

// Enough for a thread to be busy for some milliseconds, small enough that all cores stay busy.
constexpr size_t kChunkBytes = size_t{1} << 20;

// The text in chunks that can be split on their own: see safe_cut.
std::vector<std::string_view> chunks_of(std::string_view text) {
  std::vector<std::string_view> chunks;
  while (!text.empty()) {
    const size_t cut = safe_cut(text, kChunkBytes);
    chunks.push_back(text.substr(0, cut));
    text.remove_prefix(cut);
  }
  return chunks;
}

struct BytesHash {
  using is_transparent = void;
  size_t operator()(std::string_view bytes) const { return std::hash<std::string_view>()(bytes); }
};

}  // namespace

// Counts of distinct pieces, in parts by hash, so that threads seldom wait for each other.
struct BpeTrainer::Counts {
  static constexpr size_t kParts = 64;
  struct Part {
    std::mutex mutex;
    std::unordered_map<std::string, int64_t, BytesHash, std::equal_to<>> counts;
  };
  std::array<Part, kParts> parts;

  void add(std::string_view chunk) {
    std::unordered_map<std::string_view, int64_t> local;
    Splitter splitter(chunk);
    for (std::string_view piece; splitter.next(piece);) ++local[piece];
    std::array<std::vector<std::pair<std::string_view, int64_t>>, kParts> sorted;
    for (const auto& entry : local) {
      sorted[BytesHash()(entry.first) % kParts].emplace_back(entry);
    }
    for (size_t i = 0; i < kParts; ++i) {
      if (sorted[i].empty()) continue;
      const std::lock_guard lock(parts[i].mutex);
      for (const auto& [piece, count] : sorted[i]) {
        const auto at = parts[i].counts.find(piece);
        if (at != parts[i].counts.end()) {
          at->second += count;
        } else {
          parts[i].counts.emplace(piece, count);
        }
      }
    }
  }

  bool empty() const {
    return std::all_of(parts.begin(), parts.end(),
                       [](const Part& part) { return part.counts.empty(); });
  }

  // Pieces of two bytes or more in the order of their bytes, which no thread decides.
  std::vector<CountedPiece> sorted_pieces() const {
    std::vector<CountedPiece> pieces;
    for (const Part& part : parts) {
      for (const auto& [bytes, count] : part.counts) {
        if (bytes.size() > 1) pieces.push_back({bytes, count});
      }
    }
    std::sort(pieces.begin(), pieces.end(),
              [](const CountedPiece& a, const CountedPiece& b) { return a.bytes < b.bytes; });
    return pieces;
  }
};

BpeTrainer::BpeTrainer(int threads)
    : counts_(std::make_unique<Counts>()), threads_(threads > 0 ? threads : available_cores()) {}

BpeTrainer::~BpeTrainer() = default;

void BpeTrainer::add(std::string_view text, Progress* progress) {
  const std::vector<std::string_view> chunks = chunks_of(text);
  parallel_for(int64_t(chunks.size()), threads_, [&](int64_t i) {
    const std::string_view chunk = chunks[size_t(i)];
    counts_->add(chunk);
    if (progress != nullptr) progress->add(int64_t(chunk.size()));
  });
}

void BpeTrainer::check(const BpeOptions& options) {
  const auto smallest = int64_t(256 + options.specials.size());
  if (options.vocab_size < smallest) {
    fail_input("the vocabulary size ", options.vocab_size, " is too small; give at least ",
               smallest, ", for 256 bytes and ", options.specials.size(), " special tokens");
  }
  if (options.min_frequency < 1) {
    fail_input("the least frequency of a pair is ", options.min_frequency, "; give at least 1");
  }
  std::set<std::string_view> seen;
  for (const std::string& special : options.specials) {
    const char* const problem = special.empty()                ? "is empty"
                                : !is_valid_utf8(special)      ? "is not UTF-8"
                                : !seen.insert(special).second ? "is given twice"
                                                               : nullptr;
    if (problem != nullptr) {
      fail_input("the special token ", quoted(special), " ", problem, "; choose another text");
    }
  }
}

Tokenizer BpeTrainer::train(const BpeOptions& options) const {
  check(options);
  const auto smallest = int64_t(256 + options.specials.size());
  if (counts_->empty()) {
    fail_input(
        "there is no text to train a tokenizer on; give at least one file that is not empty");
  }
  const std::vector<CountedPiece> pieces = counts_->sorted_pieces();
  const int64_t wanted = options.vocab_size - smallest;
  Progress progress("merging", wanted, "merges");
  const auto merges =
      find_merges(pieces, wanted, options.min_frequency, [&](int64_t done) { progress.set(done); });
  progress.finish();
  if (int64_t(merges.size()) < wanted) {
    log_warning("the text has only ", merges.size(), " pairs that occur ", options.min_frequency,
                " times or more, so the vocabulary has ", smallest + int64_t(merges.size()),
                " tokens instead of ", options.vocab_size, "; give more text for a larger one");
  }
  return Tokenizer::from_merges(merges, options.specials);
}

}  // namespace laplace
