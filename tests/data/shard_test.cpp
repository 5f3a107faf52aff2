// Token shards: both widths survive the way to disk and back, and damaged files are refused.
#include "data/shard.h"

#include <cstring>
#include <numeric>

#include "data_support.h"

namespace laplace {
namespace {

std::string header(int32_t magic, int32_t version, int32_t tokens, size_t payload) {
  std::string bytes(kShardHeaderBytes + payload, '\0');
  const int32_t fields[3] = {magic, version, tokens};
  std::memcpy(bytes.data(), fields, sizeof fields);
  return bytes;
}

class Width : public testing::TestWithParam<int64_t> {};

TEST_P(Width, RoundTripsAcrossRolledShards) {
  const ScratchDirectory scratch;
  const int64_t vocab = GetParam();
  std::vector<int32_t> ids(1000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 7919) % size_t(vocab));
  ids[5] = static_cast<int32_t>(vocab - 1);
  SplitWriter writer(scratch.path(), "train", vocab, 300);
  for (size_t i = 0; i < ids.size(); i += 70) {
    writer.append(std::span(ids).subspan(i, std::min<size_t>(70, ids.size() - i)));
  }
  writer.finish();
  EXPECT_EQ(writer.shards(), 4);
  EXPECT_EQ(writer.tokens(), 1000);

  const auto paths = list_shards(scratch.path(), "train");
  ASSERT_EQ(paths.size(), 4U);
  EXPECT_EQ(paths[3].filename(), "train_000003.bin");
  std::vector<int32_t> back;
  for (const Path& path : paths) {
    const ShardReader reader(path);
    EXPECT_EQ(reader.token_bytes(), shard_token_bytes(vocab));
    std::vector<int32_t> part(static_cast<size_t>(reader.tokens()));
    reader.read(0, part);
    back.insert(back.end(), part.begin(), part.end());
  }
  EXPECT_EQ(back, ids);
  std::vector<int32_t> middle(50);
  ShardReader(paths[1]).read(100, middle);
  EXPECT_TRUE(std::equal(middle.begin(), middle.end(), ids.begin() + 400));
}

INSTANTIATE_TEST_SUITE_P(Shard, Width, testing::Values(500, 65536, 65537, 200000));

TEST(Shard, HeaderIsAsLlmC) {
  const ScratchDirectory scratch;
  write_split(scratch.path(), "val", std::vector<int32_t>{7, 8, 9}, 50257, 100);
  const std::string bytes = read_file(scratch / "val_000000.bin");
  std::string expected = header(20240520, 1, 3, 6);
  const uint16_t ids[3] = {7, 8, 9};
  std::memcpy(expected.data() + kShardHeaderBytes, ids, sizeof ids);
  EXPECT_EQ(bytes, expected);

  write_split(scratch.path(), "train", std::vector<int32_t>{70000}, 100000, 100);
  std::string wide = header(20240801, 7, 1, 4);
  const uint32_t id = 70000;
  std::memcpy(wide.data() + kShardHeaderBytes, &id, sizeof id);
  EXPECT_EQ(read_file(scratch / "train_000000.bin"), wide);
}

TEST(Shard, RefusesDamagedFiles) {
  const ScratchDirectory scratch;
  const Path path = scratch / "train_000000.bin";
  const auto refuse = [&](const std::string& bytes, const std::string& why) {
    write_file_atomic(path, bytes);
    expect_bad_input([&] { const ShardReader reader(path); }, {path.string(), why, "data prepare"});
  };
  refuse("", "is empty");
  refuse("short", "less than a token shard's header");
  refuse(header(1, 1, 3, 6), "its magic is 1");
  refuse(header(20240520, 7, 3, 6), "version 7");
  refuse(header(20240801, 1, 3, 12), "version 1");
  refuse(header(20240520, 1, 3, 5), "its header promises 3");
  refuse(header(20240520, 1, 3, 7), "its header promises 3");
  refuse(header(20240520, 1, INT32_MAX, 6), "its header promises 2147483647");
  refuse(header(20240520, 1, -1, 6), "has -1 tokens");
  refuse(header(20240520, 1, 0, 0), "has 0 tokens");
  expect_bad_input([&] { const ShardReader reader(scratch / "none.bin"); }, {"none.bin"});
}

TEST(Shard, ListsByNumberAndNoticesGaps) {
  const ScratchDirectory scratch;
  EXPECT_TRUE(list_shards(scratch.path(), "train").empty());
  for (const char* name : {"train_000000.bin", "train_000001.bin", "val_000000.bin", "train_1.bin",
                           "train_000002.bin.tmp", "trainx_000000.bin", "train_00000x.bin"}) {
    write_file_atomic(scratch / name, "x");
  }
  EXPECT_EQ(list_shards(scratch.path(), "train").size(), 2U);
  write_file_atomic(scratch / "train_000003.bin", "x");
  expect_bad_input([&] { list_shards(scratch.path(), "train"); }, {"lacks", "train_000002.bin"});
  expect_bad_input([&] { list_shards(scratch / "none", "train"); }, {"none", "data prepare"});
}

TEST(Shard, UncommittedLeavesNothing) {
  const ScratchDirectory scratch;
  {
    ShardWriter writer(scratch / "train_000000.bin", 2);
    writer.append(std::vector<int32_t>{1, 2, 3});
    EXPECT_THROW(writer.append(std::vector<int32_t>{65536}), Error);
    EXPECT_THROW(writer.append(std::vector<int32_t>{-1}), Error);
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(Shard, RefusesImpossibleShardSizes) {
  for (const int64_t tokens : {int64_t{0}, int64_t{-1}, kMaxShardTokens + 1}) {
    expect_bad_input([&] { const SplitWriter writer("/tmp", "train", 100, tokens); },
                     {"--shard-tokens", std::to_string(tokens)});
  }
}

}  // namespace
}  // namespace laplace
