// The one error type of the program: a sentence for the user, and whose fault it is.
//
// A message names the file, the field and the remedy. `kBadInput` ends the program with exit code
// 2, `kFailure` (a fault of ours or of the machine: full disk, no memory) with 1. Operators in
// src/ops use TORCH_CHECK instead, so that the library can be loaded into Python on its own.
#pragma once

#include <stdexcept>
#include <string>

#include "base/strings.h"

namespace laplace {

enum class ErrorKind { kBadInput, kFailure };

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  int exit_code() const { return kind_ == ErrorKind::kBadInput ? 2 : 1; }

 private:
  ErrorKind kind_;
};

// Throws a kBadInput error whose message is the concatenation of `parts`.
template <class... Parts>
[[noreturn]] void fail_input(const Parts&... parts) {
  throw Error(ErrorKind::kBadInput, cat(parts...));
}

// Throws a kFailure error whose message is the concatenation of `parts`.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(ErrorKind::kFailure, cat(parts...));
}

// `fail` with the text of errno behind the message ("...: No space left on device").
[[noreturn]] void fail_errno(const std::string& message);

}  // namespace laplace
