// Percent-encoding, as in parts of addresses (RFC 3986, 2.1).
#pragma once

#include <string>
#include <string_view>

namespace laplace {

// "%40" to "@"; what is no escape stays as it is.
std::string without_escapes(std::string_view text);

}  // namespace laplace
