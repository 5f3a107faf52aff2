// The loader: samples are a pure function of the cursor, epochs cover every window once, and the
// sequential windows make every token but the first a target exactly once.
#include "data/loader.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "data_support.h"

namespace laplace {
namespace {

constexpr int32_t kEnd = 0;  // the end-of-text id of these tests
constexpr int64_t kVocab = 5000;

// A directory whose stream is `count` different ids, but for an end-of-text token every 17.
class LoaderTest : public testing::Test {
 protected:
  void make(int64_t count, int64_t shard_tokens, std::string_view split = kTrainSplit) {
    ids_.resize(static_cast<size_t>(count));
    std::iota(ids_.begin(), ids_.end(), 1);
    for (size_t i = 0; i < ids_.size(); i += 17) ids_[i] = kEnd;
    write_split(scratch_.path(), split, ids_, kVocab, shard_tokens);
    DatasetInfo info;
    info.tokenizer_fingerprint = fingerprint_text(0xabc);
    info.vocab_size = kVocab;
    info.end_of_text = kEnd;
    SplitInfo& side = split == kTrainSplit ? info.train : info.val;
    side.documents = (count + 16) / 17;
    side.tokens = count;
    side.text_bytes = count * 4;
    side.shards = 1;
    save_dataset_info(scratch_.path(), info);
  }

  Batch window(int64_t begin, int64_t length) const {
    Batch batch;
    batch.rows = 1;
    batch.length = length;
    batch.tokens.assign(ids_.begin() + begin, ids_.begin() + begin + length + 1);
    for (int64_t t = 0; t < length; ++t) {
      batch.doc_start.push_back(batch.tokens[static_cast<size_t>(t)] == kEnd);
    }
    return batch;
  }

  ScratchDirectory scratch_;
  std::vector<int32_t> ids_;
};

std::vector<int32_t> row_of(const Batch& batch, int64_t row) {
  const auto begin = batch.tokens.begin() + row * (batch.length + 1);
  return {begin, begin + batch.length + 1};
}

TEST_F(LoaderTest, EpochCoversEveryWindowOnceAcrossShards) {
  make(1000, 37);  // windows of 20 cross the shards' borders
  const Loader loader(scratch_.path(), "train", 20, 7, kVocab);
  ASSERT_EQ(loader.samples_per_epoch(), 49);  // 999 / 20
  std::set<std::vector<int32_t>> expected;
  for (int64_t w = 0; w < 49; ++w) expected.insert(window(w * 20, 20).tokens);
  std::vector<std::vector<int32_t>> orders;
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    Batch batch;
    loader.fill(epoch * 49, 49, batch);
    std::set<std::vector<int32_t>> seen;
    for (int64_t row = 0; row < 49; ++row) seen.insert(row_of(batch, row));
    EXPECT_EQ(seen, expected);
    orders.push_back(batch.tokens);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  Batch other;
  Loader(scratch_.path(), "train", 20, 8, kVocab).fill(0, 49, other);
  EXPECT_NE(other.tokens, orders[0]);
}

TEST_F(LoaderTest, SamplesDoNotDependOnBatchesRanksOrRestarts) {
  make(700, 100);
  const Loader loader(scratch_.path(), "train", 16, 3, kVocab);
  const int64_t total = 3 * loader.samples_per_epoch() + 5;  // batches cross epochs too
  Batch all;
  loader.fill(0, total, all);
  for (const int64_t ranks : {1, 2, 3, 8}) {
    for (const int64_t rows : {1, 5}) {
      for (int64_t cursor = 0; cursor + ranks * rows <= total; cursor += ranks * rows) {
        for (int64_t rank = 0; rank < ranks; ++rank) {
          Batch slice;
          const Loader fresh(scratch_.path(), "train", 16, 3, kVocab);
          fresh.fill(uint64_t(cursor + rank * rows), rows, slice);
          for (int64_t row = 0; row < rows; ++row) {
            ASSERT_EQ(row_of(slice, row), row_of(all, cursor + rank * rows + row));
          }
        }
      }
    }
  }
}

TEST_F(LoaderTest, MarksDocumentStartsOfInputs) {
  make(200, 1000);
  const Loader loader(scratch_.path(), "train", 17, 1, kVocab);
  Batch batch;
  loader.fill(0, loader.samples_per_epoch(), batch);
  for (int64_t row = 0; row < batch.rows; ++row) {
    for (int64_t t = 0; t < 17; ++t) {
      EXPECT_EQ(batch.doc_start[size_t(row * 17 + t)], t == 0 ? 1 : 0);
    }
    EXPECT_EQ(row_of(batch, row).back(), kEnd);  // the target that ends the document
    EXPECT_EQ(batch.valid[size_t(row)], 17);
  }
}

TEST_F(LoaderTest, SequentialWindowsReachTheTail) {
  make(107, 30, kValSplit);
  const SequentialLoader loader(scratch_.path(), "val", 20, kVocab);
  EXPECT_EQ(loader.windows(), 6);  // 106 targets: 5 x 20 + 6
  EXPECT_EQ(loader.text_bytes(), 428);
  std::vector<int32_t> targets;
  Batch batch;
  for (int64_t first = 0; first < loader.windows(); first += 4) {  // the second batch is short
    loader.fill(first, 4, batch);
    ASSERT_EQ(batch.tokens.size(), 4U * 21U);
    for (int64_t row = 0; row < 4; ++row) {
      const auto tokens = row_of(batch, row);
      const int32_t valid = batch.valid[size_t(row)];
      targets.insert(targets.end(), tokens.begin() + 1, tokens.begin() + 1 + valid);
      for (size_t t = size_t(valid) + (valid > 0 ? 1 : 0); t < tokens.size(); ++t) {
        EXPECT_EQ(tokens[t], kEnd);
        if (t < 20) {
          EXPECT_EQ(batch.doc_start[size_t(row) * 20 + t], 0);
        }
      }
    }
  }
  EXPECT_EQ(targets, std::vector<int32_t>(ids_.begin() + 1, ids_.end()));
}

TEST_F(LoaderTest, ExactMultipleHasNoEmptyWindow) {
  make(41, 100, kValSplit);
  const SequentialLoader loader(scratch_.path(), "val", 20, kVocab);
  EXPECT_EQ(loader.windows(), 2);
  Batch batch;
  loader.fill(0, 3, batch);
  EXPECT_EQ(batch.valid, (std::vector<int32_t>{20, 20, 0}));
}

TEST_F(LoaderTest, RefusesTokensBeyondTheVocabulary) {
  make(200, 70);
  expect_bad_input([&] { Loader(scratch_.path(), "train", 10, 1, 150); },
                   {"dataset.json", "vocab_size 150"});
  // And where dataset.json does not know.
  DatasetInfo info = *load_dataset_info(scratch_.path());
  info.vocab_size = 150;
  save_dataset_info(scratch_.path(), info);
  const Loader loader(scratch_.path(), "train", 10, 1, 150);
  Batch batch;
  expect_bad_input([&] { loader.fill(0, loader.samples_per_epoch(), batch); },
                   {"train_00000", "position", "ends before 150", "vocab_size"});
  const TokenStream stream(scratch_.path(), "train", 150);
  std::vector<int32_t> some(4);
  expect_bad_input([&] { stream.read(196, some); },
                   {"train_000002.bin", "token 200", "position 59"});
}

TEST_F(LoaderTest, RefusesUnsoundDirectories) {
  make(200, 70);
  expect_bad_input([&] { const Loader loader(scratch_.path(), "val", 10, 1, kVocab); },
                   {"no val shards", "--val-fraction"});
  expect_bad_input([&] { const Loader loader(scratch_ / "none", "train", 10, 1, kVocab); },
                   {"none", "data prepare"});
  expect_bad_input([&] { const Loader loader(scratch_.path(), "train", 200, 1, kVocab); },
                   {"200 tokens", "shorten"});
  expect_bad_input([&] { const Loader loader(scratch_.path(), "train", 0, 1, kVocab); },
                   {"sequence length"});
  EXPECT_EQ(Loader(scratch_.path(), "train", 199, 1, kVocab).samples_per_epoch(), 1);
  std::filesystem::remove(scratch_ / "train_000002.bin");
  expect_bad_input([&] { const Loader loader(scratch_.path(), "train", 10, 1, kVocab); },
                   {"dataset.json", "200", "140"});
  write_file_atomic(scratch_ / "dataset.json", "{}");
  expect_bad_input([&] { const Loader loader(scratch_.path(), "train", 10, 1, kVocab); },
                   {"dataset.json", "format"});
}

TEST_F(LoaderTest, ShardsWithoutDatasetFileAreGpt2s) {
  write_split(scratch_.path(), "train", std::vector<int32_t>{50256, 1, 2, 50256, 3}, 50257, 100);
  const Loader loader(scratch_.path(), "train", 4, 1, 50304);
  Batch batch;
  loader.fill(0, 1, batch);
  EXPECT_EQ(batch.doc_start, (std::vector<uint8_t>{1, 0, 0, 1}));
  EXPECT_EQ(loader.text_bytes(), 0);
}

}  // namespace
}  // namespace laplace
