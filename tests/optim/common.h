// What the tests of optim/ share: random tensors, equal bits, a number of threads for a while.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/random.h"

namespace laplace::testing {

// Uniform in [-1, 1), a pure function of seed and shape.
inline at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed,
                                at::ScalarType dtype = at::kFloat) {
  at::Tensor values = at::empty(shape, at::TensorOptions(at::kDouble));
  double* const data = values.mutable_data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) data[i] = 2 * random_uniform(seed, 0, i) - 1;
  return values.to(dtype);
}

inline bool same_bits(const at::Tensor& x, const at::Tensor& y) {
  return x.scalar_type() == y.scalar_type() && at::equal(x, y);
}

// Restores the number of ATen's threads at the end of the scope.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

// Counts the tensors of 1 MB and more that are allocated on the CPU while it lives.
class LargeAllocations final : public c10::Allocator {
 public:
  LargeAllocations() : real_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 1); }
  ~LargeAllocations() override { c10::SetCPUAllocator(real_, 1); }
  LargeAllocations(const LargeAllocations&) = delete;
  LargeAllocations& operator=(const LargeAllocations&) = delete;

  int64_t count() const { return count_; }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes >= 1 << 20) ++count_;
    return real_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return real_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    real_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* real_;
  std::atomic<int64_t> count_{0};
};

// That `body` throws a laplace::Error of this kind whose sentence has `part` in it.
template <class Body>
void expect_error(ErrorKind kind, std::string_view part, const Body& body) {
  try {
    body();
    ADD_FAILURE() << "no error, expected one with: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(int(error.kind()), int(kind)) << error.what();
    EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos) << error.what();
  }
}

}  // namespace laplace::testing
