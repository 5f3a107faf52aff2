// See random_hex.h.
#include "serve/sessions/random_hex.h"

#include <sodium.h>

#include <vector>

namespace laplace {

std::string random_hex(size_t bytes) {
  std::vector<unsigned char> random(bytes);
  randombytes_buf(random.data(), bytes);
  std::string hex(2 * bytes + 1, '\0');  // libsodium ends it with a zero
  sodium_bin2hex(hex.data(), hex.size(), random.data(), bytes);
  hex.pop_back();
  return hex;
}

}  // namespace laplace
