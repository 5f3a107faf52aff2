// Large blocks of memory for weights and states, and how much of it the machine has left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace laplace {

// Zeroed pages of its own, on huge pages where the system allows it (madvise): 3 GB of weights in
// pages of 4 KB cost a TLB miss a page. Pages take memory when they are first touched.
class PageBuffer {
 public:
  PageBuffer() = default;
  // Throws Error(kFailure) when the system refuses.
  explicit PageBuffer(size_t bytes);
  ~PageBuffer();
  PageBuffer(PageBuffer&& other) noexcept;
  PageBuffer& operator=(PageBuffer&& other) noexcept;

  size_t size() const { return size_; }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  // The first `count` elements of a T; aligned to 4 KB.
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Bytes that can be taken without swapping: MemAvailable, or what is left of the control group's
// limit where that is less. 0 where unknown.
int64_t available_memory();

}  // namespace laplace
