// Checks of numbers on the command line: CLI11's own name bounds of 300 digits, and let numbers
// wrap.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>

#include "base/strings.h"

namespace laplace::cli {

// Text that is no number passes: CLI11 refuses it for its type.
template <class Holds>
CLI::Validator number_check(const char* demand, const Holds& holds) {
  return {[=](const std::string& text) {
            double value = 0;
            const bool refused = CLI::detail::lexical_cast(text, value) && !holds(value);
            return refused ? cat(text, " must be ", demand) : std::string();
          },
          ""};
}

inline CLI::Validator above_zero() {
  return number_check("above 0 and below 10^18",
                      [](double value) { return value > 0 && value < 1e18; });
}
inline CLI::Validator not_negative() {
  return number_check("0 or more and below 10^18",
                      [](double value) { return value >= 0 && value < 1e18; });
}

// Else a negative or too large number would silently become another one.
inline CLI::Validator whole_64_bits() {
  return {[](const std::string& text) {
            uint64_t value = 0;
            const char* const end = text.data() + text.size();
            const auto [at, error] = std::from_chars(text.data(), end, value);
            const bool whole = error == std::errc() && at == end;
            return whole ? std::string() : cat(quoted(text), " is no number from 0 to 2^64 - 1");
          },
          ""};
}

}  // namespace laplace::cli
