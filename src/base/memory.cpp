// See memory.h.
#include "base/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace laplace {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

// How the two versions of control groups name their files.
struct GroupFiles {
  const char *root, *limit, *used, *inactive, *active;
};
constexpr GroupFiles kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file",
                                  "active_file"};
constexpr GroupFiles kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                  "memory.usage_in_bytes", "total_inactive_file",
                                  "total_active_file"};

// A file that holds one number, -1 for anything else ("max").
int64_t number_in(const Path& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : -1;
}

int64_t room_in(const Path& folder, const GroupFiles& files) {
  const int64_t limit = number_in(folder / files.limit), used = number_in(folder / files.used);
  if (limit < 0 || used < 0) return kUnbounded;
  // The page cache counts as used there, but gives way.
  std::ifstream stat(folder / "memory.stat");
  std::string name;
  int64_t value = 0, cached = 0;
  while (stat >> name >> value) {
    if (name == files.inactive || name == files.active) cached += value;
  }
  return std::max<int64_t>(limit - used + cached, 0);
}

// A group is bound by those around it too. In a container the path may be one of the host's, which
// is not there; then the root is what bounds us.
int64_t room_along(const std::string& group, const GroupFiles& files) {
  int64_t room = room_in(files.root, files);
  Path folder = files.root;
  for (const Path& part : Path(group).relative_path()) {
    folder /= part;
    room = std::min(room, room_in(folder, files));
  }
  return room;
}

int64_t control_group_room() {
  std::ifstream groups("/proc/self/cgroup");  // lines of "number:controllers:path"
  int64_t room = kUnbounded;
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") room = std::min(room, room_along(group, kVersion2));
    if (controllers.find(",memory,") != controllers.npos) {
      room = std::min(room, room_along(group, kVersion1));
    }
  }
  return room;
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
  return std::min(available, control_group_room());
}

}  // namespace laplace
