// What the tests of the data room share: a scratch directory, shards from lists of ids, and a check
// that an error is the user's and names what it should.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "data/dataset.h"

namespace laplace {

// A directory that is empty at the start and gone at the end.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "laplace-data-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) fail_errno("cannot make a scratch directory");
    path_ = name;
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  Path operator/(std::string_view name) const { return path_ / name; }
  const Path& path() const { return path_; }

 private:
  Path path_;
};

// Writes one split of a data directory.
inline void write_split(const Path& directory, std::string_view split, std::span<const int32_t> ids,
                        int64_t vocab_size, int64_t shard_tokens) {
  std::filesystem::create_directories(directory);
  SplitWriter writer(directory, std::string(split), vocab_size, shard_tokens);
  writer.append(ids);
  writer.finish();
}

// Expects `body` to throw a bad-input error whose message holds every one of `parts`.
inline void expect_bad_input(const std::function<void()>& body,
                             const std::vector<std::string>& parts) {
  try {
    body();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput) << error.what();
    for (const std::string& part : parts) EXPECT_THAT(error.what(), testing::HasSubstr(part));
  }
}

}  // namespace laplace
