// See caching_allocator.h.
#include "ops/caching_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

namespace laplace::ops {

namespace {

// Blocks come in eight sizes an octave: at most an eighth of a block is left unused.
size_t block_size(size_t bytes) {
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

// More than this lying free when a new block is needed means that sizes have changed: it is given
// back first.
constexpr size_t kMostFree = size_t{1} << 29;

class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const block =
        bytes < kLargeBlock ? c10::GetDefaultCPUAllocator()->raw_allocate(bytes) : take(bytes);
    return {block, block, &CachingAllocator::release, c10::Device(c10::kCPU)};
  }
  // oneDNN takes and returns memory by raw_allocate and raw_deallocate.
  c10::DeleterFnPtr raw_deleter() const override { return &CachingAllocator::release; }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }

  CachingAllocatorStats stats() {
    const std::lock_guard lock(mutex_);
    return {new_blocks_, int64_t(held_)};
  }

  static CachingAllocator& instance() {
    static auto* const allocator = new CachingAllocator;  // tensors may outlive static destructors
    return *allocator;
  }

 private:
  static void release(void* block) {
    if (!instance().give_back(block)) c10::GetDefaultCPUAllocator()->raw_deallocate(block);
  }

  void* take(size_t bytes) {
    const size_t size = block_size(bytes);
    const std::lock_guard lock(mutex_);
    std::vector<void*>& free = free_[size];
    if (!free.empty()) {
      void* const block = free.back();
      free.pop_back();
      free_bytes_ -= size;
      return block;
    }
    if (free_bytes_ > kMostFree) trim();
    return fresh(size);
  }

  void* fresh(size_t size) {
    void* const block =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();
    ::madvise(block, size, MADV_HUGEPAGE);
    sizes_[block] = size;
    held_ += size;
    ++new_blocks_;
    return block;
  }

  // False for a small block, which is not ours; most show it by not beginning a page.
  bool give_back(void* block) {
    constexpr uintptr_t kPage = 4096;
    if (reinterpret_cast<uintptr_t>(block) % kPage != 0) return false;
    const std::lock_guard lock(mutex_);
    const auto known = sizes_.find(block);
    if (known == sizes_.end()) return false;
    free_[known->second].push_back(block);
    free_bytes_ += known->second;
    return true;
  }

  void trim() {
    for (const auto& [size, blocks] : free_) {
      for (void* const block : blocks) {
        sizes_.erase(block);
        held_ -= size;
        ::munmap(block, size);
      }
    }
    free_.clear();
    free_bytes_ = 0;
  }

  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;
  std::unordered_map<void*, size_t> sizes_;
  size_t free_bytes_ = 0, held_ = 0;
  int64_t new_blocks_ = 0;
};

}  // namespace

void install_caching_allocator() {
  c10::SetCPUAllocator(&CachingAllocator::instance(), /*priority=*/1);
}

CachingAllocatorStats caching_allocator_stats() { return CachingAllocator::instance().stats(); }

}  // namespace laplace::ops
