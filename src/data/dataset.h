// A prepared data directory: what `dataset.json` says about it, and each split as one token stream.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "data/shard.h"
#include "text/tokenizer.h"

namespace laplace {

inline constexpr std::string_view kDatasetFile = "dataset.json";
inline constexpr std::string_view kTrainSplit = "train";
inline constexpr std::string_view kValSplit = "val";

struct SplitInfo {
  int64_t documents = 0;
  int64_t tokens = 0;      // end-of-text tokens included, one a document
  int64_t text_bytes = 0;  // of the text alone: what bits per byte divide by
  int64_t shards = 0;
};

struct DatasetInfo {
  std::string tokenizer_fingerprint;  // 16 hexadecimal digits
  int64_t vocab_size = 0;
  int64_t end_of_text = 0;
  SplitInfo train;
  SplitInfo val;

  const SplitInfo& split(std::string_view name) const { return name == kValSplit ? val : train; }
};

// Tokenizer::fingerprint() as dataset.json spells it.
std::string fingerprint_text(uint64_t fingerprint);

// Writes dataset.json into `directory`, atomically.
void save_dataset_info(const Path& directory, const DatasetInfo& info);
// Reads it; nothing when the directory has none (shards that llm.c's scripts wrote).
std::optional<DatasetInfo> load_dataset_info(const Path& directory);

// Whether the directory has shards of the split, or dataset.json counts tokens of it: then opening
// it refuses what is missing.
bool has_split(const Path& directory, std::string_view split);

// The shards of one split as one concatenated stream of tokens. Const members may be called from
// any number of threads.
class TokenStream {
 public:
  // Opens all shards of the split and checks their headers, sizes and total against dataset.json.
  // `vocab_size` is the model's: read() refuses ids from there on. Shards without a dataset.json
  // are taken as GPT-2's, whose end-of-text token is 50256.
  TokenStream(const Path& directory, std::string_view split, int64_t vocab_size);

  int64_t tokens() const { return starts_.back(); }
  // The tokenizer beside the shards, nothing where there is none. One that did not make them, or
  // with more tokens than the model, is refused.
  std::optional<Tokenizer> tokenizer() const;
  // Tells other tokens apart, by the shards' sizes and samples of each; not every change of a few.
  std::string fingerprint() const;
  int64_t shards() const { return static_cast<int64_t>(shards_.size()); }
  int32_t end_of_text() const { return end_of_text_; }
  // Bytes of the text behind the tokens, 0 where dataset.json is missing.
  int64_t text_bytes() const { return info_ ? info_->split(split_).text_bytes : 0; }
  const std::optional<DatasetInfo>& info() const { return info_; }
  // "data/train" for messages.
  std::string name() const { return (directory_ / split_).string(); }

  // Copies tokens [begin, begin + out.size()); throws on an id outside the vocabulary.
  void read(int64_t begin, std::span<int32_t> out) const;

 private:
  void check(const ShardReader& shard, int64_t begin, std::span<const int32_t> ids) const;

  Path directory_;
  std::string split_;
  int64_t vocab_size_;
  int32_t end_of_text_;
  std::optional<DatasetInfo> info_;
  std::vector<ShardReader> shards_;
  std::vector<int64_t> starts_;  // [shards + 1], the stream position of each shard's first token
};

}  // namespace laplace
