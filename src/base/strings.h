// Small text helpers: joining values, numbers for people, the nearest known name for a typo.
#pragma once

#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <string_view>

namespace laplace {

// Everything that has an operator<<, one after another.
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string strf(const char* format, ...);

// 2717908992 -> "2,717,908,992".
std::string with_commas(int64_t value);
// 29491200 -> "29.5 MB" (powers of 1,000).
std::string human_bytes(double bytes);
// 12345 -> "12.3k", 2.5e6 -> "2.50M".
std::string human_count(double value);
// Seconds -> "4m12s", "1h03m", "8.2s".
std::string human_duration(double seconds);

// `text` in double quotes, control characters and bytes that are not ASCII escaped, cut at 60
// bytes: for quoting what a user gave inside an error sentence.
std::string quoted(std::string_view text);
// Exact matches, so that std::quoted of <iomanip> is never found for these by argument lookup.
inline std::string quoted(const std::string& text) { return quoted(std::string_view(text)); }
inline std::string quoted(const char* text) { return quoted(std::string_view(text)); }

// `text` with its control characters escaped, those of Unicode's second block (C1) too: a terminal
// obeys nothing of it.
std::string without_controls(std::string_view text);

// FNV-1a of the bytes, 64 bits; `hash` goes on from a value before. The same on every machine.
// Source: http://www.isthe.com/chongo/tech/comp/fnv
constexpr uint64_t fnv1a(std::string_view bytes, uint64_t hash = 0xCBF29CE484222325) {
  for (const char c : bytes) hash = (hash ^ uint8_t(c)) * 0x100000001B3;
  return hash;
}

// The candidate with the least edit distance from `name`, or "" when none is near (distance at most
// max(2, a third of the length)).
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);
// ", did you mean \"x\"?" for the nearest candidate, "" when none is near.
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);
// The same, and the end of an error's sentence about a name that is not known.
std::string remove_or_correct(std::string_view name, std::span<const std::string> candidates);

}  // namespace laplace
