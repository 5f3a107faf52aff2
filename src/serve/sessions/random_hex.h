// Names that nobody can guess and no two processes share: of requests, locks, versions of sessions.
#pragma once

#include <cstddef>
#include <string>

namespace laplace {

// So many random bytes as hexadecimal digits, two each. Any thread may call it.
std::string random_hex(size_t bytes);

}  // namespace laplace
