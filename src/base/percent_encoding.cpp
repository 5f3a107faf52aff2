// See percent_encoding.h.
#include "base/percent_encoding.h"

#include <charconv>

namespace laplace {

std::string without_escapes(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    const char* const hex = text.data() + i + 1;
    const bool escape = text[i] == '%' && i + 2 < text.size() &&
                        std::from_chars(hex, hex + 2, byte, 16).ptr == hex + 2;
    out += escape ? char(byte) : text[i];
    if (escape) i += 2;
  }
  return out;
}

}  // namespace laplace
