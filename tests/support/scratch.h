// A directory of its own for one test case, removed when the case ends.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "base/files.h"
#include "base/strings.h"

namespace laplace::testing {

class ScratchDirectory {
 public:
  ScratchDirectory() {
    static std::atomic<int> count{0};
    path_ = std::filesystem::temp_directory_path() / cat("laplace-test-", ::getpid(), "-", count++);
    std::filesystem::create_directories(path_);
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const Path& path() const { return path_; }
  Path operator/(const Path& name) const { return path_ / name; }

 private:
  Path path_;
};

}  // namespace laplace::testing
