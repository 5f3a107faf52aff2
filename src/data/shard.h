// Token shards: llm.c's `.bin` files, memory-mapped for reading and written atomically.
//
// A shard is a header of 256 little-endian int32 (magic, version, token count, zeros) and the
// tokens:
//   magic 20240520, version 1: uint16 tokens, for vocabularies of up to 65,536;
//   magic 20240801, version 7: uint32 tokens, for larger ones.
// Source: llm.c, llmc/dataloader.h and dev/data/data_common.py.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace laplace {

inline constexpr int64_t kShardHeaderBytes = 256 * 4;
inline constexpr int64_t kMaxShardTokens = INT32_MAX;  // the count is an int32
inline constexpr int64_t kMaxVocab16 = 65536;

struct ShardHeader {
  int64_t tokens = 0;
  int token_bytes = 2;  // 2 or 4
};

// Bytes a token takes on disk for a vocabulary of this size.
constexpr int shard_token_bytes(int64_t vocab_size) { return vocab_size <= kMaxVocab16 ? 2 : 4; }

// Checks the header that stands at the front of `bytes` against the size of the whole file.
// `source` names the file in errors. Throws Error(kBadInput) for a file that is not a whole shard.
ShardHeader parse_shard_header(std::span<const std::byte> bytes, uint64_t file_bytes,
                               const std::string& source);

// `<split>_000007.bin`
std::string shard_name(std::string_view split, int64_t number);

// The shards of a split in order of their numbers, which must run from 0 without a gap. Empty when
// the directory has none; throws when the directory does not exist or a number is missing.
std::vector<Path> list_shards(const Path& directory, std::string_view split);

// One shard, open for reading. Const members may be called from any number of threads.
class ShardReader {
 public:
  explicit ShardReader(const Path& path);

  int64_t tokens() const { return header_.tokens; }
  int token_bytes() const { return header_.token_bytes; }
  const Path& path() const { return file_.path(); }

  // Copies tokens [begin, begin + out.size()), which must lie inside the shard. Ids are not
  // checked; a uint32 beyond int32 comes out negative.
  void read(int64_t begin, std::span<int32_t> out) const;

 private:
  MappedFile file_;
  ShardHeader header_;
};

// One shard, being written. It appears under its name at commit(). Not thread-safe.
class ShardWriter {
 public:
  ShardWriter(const Path& path, int token_bytes);

  // Ids must be at least 0 and fit into token_bytes; throws beyond kMaxShardTokens.
  void append(std::span<const int32_t> ids);
  int64_t tokens() const { return tokens_; }
  // Completes the header, syncs and renames. May be called once.
  void commit();

 private:
  AtomicFile file_;
  Path path_;
  int token_bytes_;
  int64_t tokens_ = 0;
};

// The shards of one split, being written: rolls to the next file every `shard_tokens` tokens, in
// the middle of a document if need be (readers see one stream). Not thread-safe.
class SplitWriter {
 public:
  SplitWriter(Path directory, std::string split, int64_t vocab_size, int64_t shard_tokens);
  ~SplitWriter();

  void append(std::span<const int32_t> ids);
  // Completes the last shard. A split without tokens leaves no file.
  void finish();
  int64_t tokens() const { return tokens_; }
  int64_t shards() const { return shards_; }

 private:
  Path directory_;
  std::string split_;
  int token_bytes_;
  int64_t shard_tokens_;
  int64_t tokens_ = 0;
  int64_t shards_ = 0;
  std::unique_ptr<ShardWriter> shard_;
};

}  // namespace laplace
