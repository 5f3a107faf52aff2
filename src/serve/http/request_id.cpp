// See request_id.h.
#include "serve/http/request_id.h"

#include "serve/sessions/random_hex.h"

namespace laplace {

std::string harmless_request_id(std::string_view given) {
  if (given.empty()) return random_name("req-");
  std::string id(given.substr(0, 128));
  for (char& c : id) {
    if (c <= ' ' || c > '~') c = '_';
  }
  return id;
}

std::string random_name(std::string_view prefix) { return std::string(prefix) + random_hex(12); }

}  // namespace laplace
