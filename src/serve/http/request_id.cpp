// See request_id.h.
#include "serve/http/request_id.h"

#include <sodium.h>

#include <array>

namespace laplace {

std::string harmless_request_id(std::string_view given) {
  if (given.empty()) return random_name("req-");
  std::string id(given.substr(0, 128));
  for (char& c : id) {
    if (c <= ' ' || c > '~') c = '_';
  }
  return id;
}

std::string random_name(std::string_view prefix) {
  std::array<unsigned char, 12> bytes{};
  randombytes_buf(bytes.data(), bytes.size());
  std::array<char, 2 * bytes.size() + 1> hex{};
  sodium_bin2hex(hex.data(), hex.size(), bytes.data(), bytes.size());
  return std::string(prefix) + hex.data();
}

}  // namespace laplace
