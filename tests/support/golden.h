// Golden vectors: inputs and results that every part of laplace is tested against, and the error
// measures their tolerances are stated in (tests/data/golden/README.md).
//
// Add ../support/golden.cpp to the SOURCES of a test and laplace_model to its USES.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/safetensors.h"

namespace laplace::testing {

// tests/data/golden/<name> in the source tree.
Path golden_path(const std::string& name);

// One file of golden vectors, whose tensors are named "<case>.<tensor>".
class GoldenFile {
 public:
  // `name` as in "gla.safetensors".
  explicit GoldenFile(const std::string& name) : file_(golden_path(name)) {}

  // The names of the cases in alphabetical order; empty for files that hold a single case.
  std::vector<std::string> cases() const;
  // What the case is, in a few words.
  std::string description(const std::string& test_case) const;

  // A copy that may be written to, in the dtype it is stored in. A `test_case` of "" reads from a
  // file of a single case. Throws laplace::Error when there is none.
  at::Tensor tensor(const std::string& test_case, const std::string& name) const;
  // The same, or nothing when the case has no such tensor.
  std::optional<at::Tensor> optional(const std::string& test_case, const std::string& name) const;
  // The one element of a tensor of shape [1].
  double number(const std::string& test_case, const std::string& name) const;
  int64_t integer(const std::string& test_case, const std::string& name) const;

  const SafetensorsFile& file() const { return file_; }

 private:
  std::map<std::string, std::string> descriptions() const;

  SafetensorsFile file_;
};

// e = max|x - ref| / rms(ref), in float64. Where ref is zero everywhere: 0 if every |x| < 1e-12.
// Infinite for shapes that differ, for values of x that are not finite, and otherwise.
double max_error(const at::Tensor& x, const at::Tensor& ref);
// r = rms(x - ref) / rms(ref), with the same rules.
double rms_error(const at::Tensor& x, const at::Tensor& ref);

}  // namespace laplace::testing
