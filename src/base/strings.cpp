// See strings.h.
#include "base/strings.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <vector>

namespace laplace {

std::string strf(const char* format, ...) {
  va_list args;
  va_start(args, format);
  va_list again;
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, format, args);
  va_end(args);
  std::string out(static_cast<size_t>(std::max(length, 0)), '\0');
  std::vsnprintf(out.data(), out.size() + 1, format, again);
  va_end(again);
  return out;
}

std::string with_commas(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string human_bytes(double bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 999.5 && unit + 1 < std::size(units)) bytes /= 1000, ++unit;
  return unit == 0 ? strf("%.0f B", bytes) : strf("%.1f %s", bytes, units[unit]);
}

std::string human_count(double value) {
  if (std::abs(value) >= 1e9) return strf("%.2fB", value / 1e9);
  if (std::abs(value) >= 1e6) return strf("%.2fM", value / 1e6);
  if (std::abs(value) >= 1e3) return strf("%.1fk", value / 1e3);
  return strf("%.0f", value);
}

std::string human_duration(double seconds) {
  if (!(seconds >= 0)) return "-";
  if (seconds < 10) return strf("%.1fs", seconds);
  const auto whole = static_cast<int64_t>(std::min(seconds, 1e15));
  const auto in = [&](int64_t unit) { return static_cast<long long>(whole / unit); };
  if (whole < 60) return strf("%llds", in(1));
  if (whole < 3600) return strf("%lldm%02llds", in(60), in(1) % 60);
  if (whole < 48 * 3600) return strf("%lldh%02lldm", in(3600), in(60) % 60);
  return strf("%lldd%02lldh", in(86400), in(3600) % 24);
}

std::string quoted(std::string_view text) {
  constexpr size_t kLimit = 60;
  std::string out = "\"";
  for (const unsigned char c : text.substr(0, kLimit)) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20 || c >= 0x7f) {
      out += strf("\\x%02x", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + (text.size() > kLimit ? "...\"" : "\"");
}

std::string without_controls(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (c == 0xc2 && next >= 0x80 && next < 0xa0) {
      out += strf("\\u%04x", next);
      ++i;
    } else if (c < 0x20 || c == 0x7f) {
      out += strf("\\x%02x", c);
    } else {
      out += text[i];
    }
  }
  return out;
}

namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substitute, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  if (name.size() > 200) return "";
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) best_distance = distance, best = candidate;
  }
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates) {
  const std::string near = nearest_name(name, candidates);
  return near.empty() ? "" : cat(", did you mean ", quoted(near), "?");
}

std::string remove_or_correct(std::string_view name, std::span<const std::string> candidates) {
  const std::string hint = did_you_mean(name, candidates);
  return hint + (hint.empty() ? "; remove it" : " Remove it") + " or correct its name";
}

}  // namespace laplace
