// Files: reading with limits, mapping, and writing so that nothing is ever lost.
//
// A file or directory that we write appears under its name only when it is complete: it is written
// to a temporary name beside it, synced, and renamed, and the parent directory is synced too.
// All functions throw laplace::Error naming the path. Not thread-safe per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace laplace {

using Path = std::filesystem::path;

// The rest of standard input.
std::string read_standard_input();
// The whole file. Refuses a missing file, a directory, and more than `max_bytes`.
std::string read_file(const Path& path, uint64_t max_bytes = uint64_t{1} << 32);

// Writes all of `bytes` to an open file, in as many pieces as the system takes: at `offset`, or
// where the file stands. `path` is for the message.
void write_fully(int descriptor, std::string_view bytes, const Path& path, int64_t offset = -1);

// Writes `bytes` under `path` atomically (temporary name, fsync, rename, fsync of the parent).
void write_file_atomic(const Path& path, std::string_view bytes);

void fsync_directory(const Path& directory);

// A file that is written piece by piece and appears under its name at commit().
// Destroyed without commit, it leaves nothing behind.
class AtomicFile {
 public:
  explicit AtomicFile(const Path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);
  void write(std::span<const std::byte> bytes);
  // Overwrites bytes already written (headers that hold a count known only at the end).
  void write_at(uint64_t offset, std::string_view bytes);
  // Flushes, syncs and renames. May be called once.
  void commit();

 private:
  Path path_;
  Path temporary_;
  int descriptor_ = -1;
};

// Held by one process at a time, as long as it lives. Throws Error(kBadInput) with `taken` where
// another holds it; file systems without locks give it to everybody.
class FileLock {
 public:
  FileLock(const Path& path, const std::string& taken);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

// A directory that is filled under a hidden name beside it and appears under `path` at commit().
// The files inside must be synced by whoever writes them (AtomicFile does). A left-over temporary
// directory of an earlier, killed run is emptied first; one that another process fills is refused.
// Destroyed without commit, it is removed.
class AtomicDirectory {
 public:
  explicit AtomicDirectory(const Path& path);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  const Path& temporary() const { return temporary_; }
  // Refuses when `path` exists already.
  void commit();

 private:
  bool lock();

  Path path_;
  Path temporary_;
  int descriptor_ = -1;  // of the temporary directory, locked
  bool committed_ = false;
};

// A read-only memory map of a whole file. Movable; the bytes live as long as the object.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const Path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  size_t size() const { return size_; }
  const Path& path() const { return path_; }

 private:
  Path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace laplace
