// See memory.h.
#include "serve/engine/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "base/error.h"

namespace laplace {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// A file that holds one number, -1 for anything else ("max").
int64_t number_in(const char* path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : -1;
}

int64_t control_group_room() {
  const int64_t limit = number_in("/sys/fs/cgroup/memory.max");
  const int64_t used = number_in("/sys/fs/cgroup/memory.current");
  if (limit < 0 || used < 0) return -1;
  // The page cache counts as used there, but gives way.
  std::ifstream stat("/sys/fs/cgroup/memory.stat");
  std::string name;
  int64_t value = 0, cached = 0;
  while (stat >> name >> value) {
    if (name == "inactive_file" || name == "active_file") cached += value;
  }
  return std::max<int64_t>(limit - used + cached, 0);
}

}  // namespace

PageBuffer::PageBuffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  const size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* const pages = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) fail_errno(cat("cannot take ", bytes, " bytes of memory"));
  if (bytes >= kHugePage) ::madvise(pages, rounded, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(pages);
}

PageBuffer::~PageBuffer() {
  if (data_ != nullptr) ::munmap(data_, (size_ + kHugePage - 1) / kHugePage * kHugePage);
}

PageBuffer::PageBuffer(PageBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  int64_t kilobytes = 0, available = 0;
  while (file >> name >> kilobytes) {
    std::getline(file, unit);
    if (name == "MemAvailable:") available = kilobytes * 1024;
  }
  const int64_t group = control_group_room();
  return group >= 0 ? std::min(available, group) : available;
}

}  // namespace laplace
