// Which part of a small product is wanted or not zero.
#pragma once

namespace laplace::ops {

// In blocks of rows, as many as the product takes at a time.
enum class Part {
  kAll,
  kLowerResult,  // elements (i,j) with j <= i, and some to their right
  kLowerA,       // A(i,k) is zero for k > i
  kUpperA,       // A(i,k) is zero for k < i
};

}  // namespace laplace::ops
