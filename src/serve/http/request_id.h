// Names of requests, in answers and logs.
#pragma once

#include <string>
#include <string_view>

namespace laplace {

// What a client sent as x-request-id, cut at 128 bytes, with everything but printable ASCII
// replaced by '_' (a line break would forge headers and log lines); a random one for "".
std::string harmless_request_id(std::string_view given);

// `prefix` and 24 random hexadecimal digits: "cmpl-...".
std::string random_name(std::string_view prefix);

}  // namespace laplace
