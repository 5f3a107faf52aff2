// See prepare.h.
//
// One thread reads records into blocks of about a megabyte; a group of blocks is tokenized on all
// threads while the next group is read; then the pieces are dealt to the shards in input order.
#include "data/prepare.h"

#include <algorithm>
#include <exception>
#include <future>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "base/threads.h"
#include "data/output_directory.h"

namespace laplace {

namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr size_t kBlocksPerThread = 4;

struct Block {
  std::vector<Record> records;
  std::vector<Piece> pieces;
  int64_t bad_lines = 0;
  int64_t empty_documents = 0;
  std::exception_ptr error;  // what stopped the block, behind its pieces
};

// Encoders keep caches, so they are kept from group to group and lent to whoever works.
class EncoderPool {
 public:
  explicit EncoderPool(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  std::unique_ptr<Encoder> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Encoder>(tokenizer_);
    auto encoder = std::move(idle_.back());
    idle_.pop_back();
    return encoder;
  }
  void give_back(std::unique_ptr<Encoder> encoder) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(encoder));
  }

 private:
  const Tokenizer& tokenizer_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Encoder>> idle_;
};

// The next `count` blocks, fewer at the end of the input, none behind it.
std::vector<Block> read_group(Importer& importer, size_t count) {
  std::vector<Block> group;
  Record record;
  while (group.size() < count) {
    Block block;
    size_t bytes = 0;
    while (bytes < kBlockBytes && importer.next(record)) {
      bytes += record.bytes.size();
      block.records.push_back(std::move(record));
    }
    if (block.records.empty()) break;
    group.push_back(std::move(block));
    if (bytes < kBlockBytes) break;
  }
  return group;
}

void tokenize(const Importer& importer, Encoder& encoder, Block& block) {
  for (Record& record : block.records) {
    const bool starts = record.starts_document;
    std::optional<std::string> text = importer.take_text(std::move(record));
    if (!text) {
      ++block.bad_lines;
    } else if (text->empty()) {
      ++block.empty_documents;
    } else {
      Piece piece{std::move(*text), {}, starts};
      encoder.encode(piece.text, piece.ids);
      block.pieces.push_back(std::move(piece));
    }
  }
  block.records.clear();
}

void tokenize_group(const Importer& importer, EncoderPool& encoders, int threads,
                    std::vector<Block>& group) {
  parallel_for(static_cast<int64_t>(group.size()), threads, [&](int64_t i) {
    Block& block = group[static_cast<size_t>(i)];
    auto encoder = encoders.take();
    try {
      tokenize(importer, *encoder, block);
    } catch (...) {
      // Kept, so that the error that is told is the first in the input, not the first in time.
      block.error = std::current_exception();
    }
    encoders.give_back(std::move(encoder));
  });
}

void deal(std::vector<Block>& group, Splitter& splitter, PrepareReport& report) {
  for (Block& block : group) {
    for (Piece& piece : block.pieces) splitter.add(std::move(piece));
    if (block.error) std::rethrow_exception(block.error);
    report.bad_lines += block.bad_lines;
    report.empty_documents += block.empty_documents;
  }
}

// Reads, tokenizes and deals everything.
void run(Importer& importer, const Tokenizer& tokenizer, int threads, Splitter& splitter,
         PrepareReport& report) {
  EncoderPool encoders(tokenizer);
  const size_t blocks = static_cast<size_t>(threads) * kBlocksPerThread;
  std::vector<Block> group = read_group(importer, blocks);
  while (!group.empty()) {
    // Reading runs ahead by one group. Should dealing throw, the future waits for the reader.
    auto next = std::async(std::launch::async, [&] { return read_group(importer, blocks); });
    tokenize_group(importer, encoders, threads, group);
    deal(group, splitter, report);
    if (stop_requested()) fail("stopped; nothing was written");
    group = next.get();
  }
}

}  // namespace

PrepareReport prepare_dataset(const PrepareOptions& options) {
  if (options.threads < 0) {
    fail_input("--threads is ", options.threads, ", but must be at least 1, or 0 for all cores");
  }
  const int threads = options.threads > 0 ? options.threads : available_cores();
  const Tokenizer tokenizer = Tokenizer::open(options.tokenizer);
  std::unique_ptr<Progress> progress;
  Importer importer(options.import, [&](int64_t bytes) { progress->add(bytes); });
  progress = std::make_unique<Progress>("tokenizing", importer.input_bytes(), "B");
  OutputDirectory out(options.out, options.overwrite, tokenizer.fingerprint());
  Splitter splitter(tokenizer, out.temporary(), options.split);
  PrepareReport report;
  report.files = importer.files();
  run(importer, tokenizer, threads, splitter, report);
  progress->finish();
  if (splitter.documents() == 0 && report.bad_lines > 0) {
    fail_input("all ", report.bad_lines, " lines were left out as bad; without --skip-bad the ",
               "first of them is told");
  }
  report.info = splitter.finish();
  save_dataset_info(out.temporary(), report.info);
  tokenizer.save(out.temporary());
  out.commit();
  return report;
}

}  // namespace laplace
