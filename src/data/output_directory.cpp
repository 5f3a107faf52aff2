// See output_directory.h.
#include "data/output_directory.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include "base/error.h"
#include "data/dataset.h"
#include "text/tokenizer.h"

namespace laplace {

namespace {

namespace fs = std::filesystem;

enum class Entry { kData, kTokenizer, kForeign };

Entry kind_of(const std::string& name) {
  if (name == "tokenizer.json") return Entry::kTokenizer;
  if (name == kDatasetFile) return Entry::kData;
  const bool split = name.starts_with("train_") || name.starts_with("val_");
  return split && name.ends_with(".bin") ? Entry::kData : Entry::kForeign;
}

bool is_tokenizer(const Path& directory, uint64_t fingerprint) {
  try {
    return Tokenizer::open(directory).fingerprint() == fingerprint;
  } catch (const Error&) {
    return false;
  }
}

// The true place of the directory: behind links, without a slash at the end.
Path resolved(const Path& path) {
  const Path whole = fs::weakly_canonical(fs::absolute(path));
  return whole.has_filename() ? whole : whole.parent_path();
}

Path checked(const Path& given, bool overwrite, uint64_t tokenizer) {
  Path path = resolved(given);
  if (!fs::exists(path)) return path;
  if (!fs::is_directory(path)) {
    fail_input(given.string(), " is a file; name a directory with --out");
  }
  bool has_data = false;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    const Entry kind = kind_of(name);
    if (kind == Entry::kForeign) {
      fail_input(given.string(), " holds ", quoted(name),
                 ", which is no part of a data set; name a new or empty directory with --out");
    }
    has_data = has_data || kind == Entry::kData;
    if (kind == Entry::kTokenizer && !overwrite && !is_tokenizer(path, tokenizer)) {
      fail_input(given.string(),
                 " holds another tokenizer than the one in use; name another "
                 "directory with --out, or replace it with --overwrite");
    }
  }
  if (has_data && !overwrite) {
    fail_input(given.string(), " holds a data set already; name another directory with --out, or ",
               "replace it with --overwrite");
  }
  return path;
}

// Swaps two directories in one step, so that `path` is complete at any time, whatever happens.
// False where the file system cannot.
bool exchange(const Path& temporary, const Path& path) {
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
  fail_errno(cat("cannot replace ", path.string()));
}

}  // namespace

OutputDirectory::OutputDirectory(const Path& path, bool overwrite, uint64_t tokenizer)
    : path_(checked(path, overwrite, tokenizer)), directory_(path_) {}

void OutputDirectory::commit() {
  if (!fs::exists(path_)) {
    directory_.commit();
    return;
  }
  fsync_directory(temporary());
  if (exchange(temporary(), path_)) {
    fsync_directory(path_.parent_path());
    return;  // the temporary name now holds the old data, which goes with `directory_`
  }
  const Path old = path_.string() + ".old";
  fs::rename(path_, old);
  try {
    directory_.commit();
  } catch (...) {
    std::error_code ignored;
    fs::rename(old, path_, ignored);
    throw;
  }
  fs::remove_all(old);
}

}  // namespace laplace
