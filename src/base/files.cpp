// See files.h. POSIX calls, because std::filesystem has neither fsync nor error-checked writes.
#include "base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/descriptor.h"
#include "base/error.h"

namespace laplace {

void fail_errno(const std::string& message) {
  const int code = errno;
  fail(message, ": ", std::strerror(code));
}

namespace {

// Opens for reading; a missing or unreadable file is the user's to mend.
int open_to_read(const Path& path, struct stat* info) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    fail_input("cannot open ", path.string(), ": ", std::strerror(errno), "; check the path");
  }
  if (::fstat(descriptor, info) != 0 || S_ISDIR(info->st_mode)) {
    ::close(descriptor);
    fail_input(path.string(), " is a directory where a file is needed; name a file inside it");
  }
  return descriptor;
}

// False where another process holds the lock; file systems without locks give it to everybody.
bool lock_file(int descriptor) {
  return ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

void append_all(int descriptor, const std::string& name, uint64_t max_bytes, std::string& out) {
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = ::read(descriptor, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(cat("cannot read ", name));
    if (got == 0) return;
    out.append(buffer, static_cast<size_t>(got));
    if (out.size() > max_bytes) {
      fail_input(name, " is larger than the limit of ", human_bytes(double(max_bytes)),
                 " for such a file; give a smaller one");
    }
  }
}

Path parent_of(const Path& path) {
  const Path parent = path.parent_path();
  return parent.empty() ? Path(".") : parent;
}

}  // namespace

std::string read_standard_input() {
  std::string out;
  append_all(STDIN_FILENO, "standard input", UINT64_MAX, out);
  return out;
}

std::string read_file(const Path& path, uint64_t max_bytes) {
  struct stat info {};
  const Descriptor file(open_to_read(path, &info));
  std::string out;
  if (S_ISREG(info.st_mode)) out.reserve(static_cast<size_t>(info.st_size) + 1);
  append_all(file.get(), path.string(), max_bytes, out);
  return out;
}

void write_fully(int descriptor, std::string_view bytes, const Path& path, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t put = offset < 0
                            ? ::write(descriptor, bytes.data(), bytes.size())
                            : ::pwrite(descriptor, bytes.data(), bytes.size(), off_t(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno(cat("cannot write ", path.string()));
    bytes.remove_prefix(static_cast<size_t>(put));
    if (offset >= 0) offset += put;
  }
}

void write_file_atomic(const Path& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void fsync_directory(const Path& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_errno(cat("cannot open the directory ", directory.string()));
  const int result = ::fsync(descriptor);
  ::close(descriptor);
  if (result != 0) fail_errno(cat("cannot sync the directory ", directory.string()));
}

AtomicFile::AtomicFile(const Path& path) : path_(path), temporary_(path.string() + ".tmp") {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail_errno(cat("cannot write ", temporary_.string()));
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::string_view bytes) { write_fully(descriptor_, bytes, path_); }

void AtomicFile::write(std::span<const std::byte> bytes) {
  write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void AtomicFile::write_at(uint64_t offset, std::string_view bytes) {
  write_fully(descriptor_, bytes, path_, static_cast<int64_t>(offset));
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) fail_errno(cat("cannot sync ", path_.string()));
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int code = errno;
    ::unlink(temporary_.c_str());
    errno = code;
    fail_errno(cat("cannot write ", path_.string()));
  }
  fsync_directory(parent_of(path_));
}

FileLock::FileLock(const Path& path, const std::string& taken)
    : descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) fail_errno(cat("cannot write ", path.string()));
  if (!lock_file(descriptor_)) {
    ::close(descriptor_);
    fail_input(taken);
  }
}

FileLock::~FileLock() { ::close(descriptor_); }

// A hidden name, for `path`.tmp may be a directory of the user's.
AtomicDirectory::AtomicDirectory(const Path& path)
    : path_(path), temporary_(parent_of(path) / cat(".", path.filename().string(), ".tmp")) {
  std::error_code code;
  do {
    std::filesystem::create_directories(temporary_, code);
    if (code) fail("cannot create the directory ", temporary_.string(), ": ", code.message());
  } while (!lock());
  for (const auto& left_over : std::filesystem::directory_iterator(temporary_)) {
    std::filesystem::remove_all(left_over, code);
    if (code) fail("cannot remove ", left_over.path().string(), ": ", code.message());
  }
}

// False when another process has removed or renamed the directory in the meantime.
bool AtomicDirectory::lock() {
  descriptor_ = ::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0 && errno == ENOENT) return false;
  if (descriptor_ < 0) fail_errno(cat("cannot open ", temporary_.string()));
  if (!lock_file(descriptor_)) {
    ::close(descriptor_);
    fail_input("another process is writing ", path_.string(),
               "; wait until it has ended, or choose another place");
  }
  struct stat own {};
  struct stat named {};
  const bool same = ::fstat(descriptor_, &own) == 0 && ::stat(temporary_.c_str(), &named) == 0 &&
                    own.st_dev == named.st_dev && own.st_ino == named.st_ino;
  if (!same) ::close(descriptor_);
  return same;
}

AtomicDirectory::~AtomicDirectory() {
  ::close(descriptor_);
  if (committed_) return;
  std::error_code ignored;
  std::filesystem::remove_all(temporary_, ignored);
}

void AtomicDirectory::commit() {
  fsync_directory(temporary_);
  if (std::filesystem::exists(path_)) fail(path_.string(), " exists already; remove it first");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail_errno(cat("cannot rename ", temporary_.string(), " to ", path_.string()));
  }
  committed_ = true;
  fsync_directory(parent_of(path_));
}

MappedFile::MappedFile(const Path& path) : path_(path) {
  struct stat info {};
  const int descriptor = open_to_read(path, &info);
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    void* const mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) {
      ::close(descriptor);
      fail_errno(cat("cannot map ", path.string()));
    }
    data_ = static_cast<const std::byte*>(mapped);
  }
  ::close(descriptor);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace laplace
