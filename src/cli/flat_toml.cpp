// See flat_toml.h.
#include "cli/flat_toml.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace laplace::cli {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_bare_key(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
}

// A number, true or false: what stands without quotes.
bool is_bare_value(std::string_view text) {
  if (text == "true" || text == "false") return true;
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  if (text == "inf" || text == "nan") return true;
  return !text.empty() && is_digit(text.front()) &&
         std::ranges::all_of(text, [](char c) { return is_bare_key(c) || c == '.' || c == '+'; });
}

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += char(c);
  } else if (c < 0x800) {
    out += char(0xC0 | c >> 6);
    out += char(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += char(0xE0 | c >> 12);
    out += char(0x80 | (c >> 6 & 0x3F));
    out += char(0x80 | (c & 0x3F));
  } else {
    out += char(0xF0 | c >> 18);
    out += char(0x80 | (c >> 12 & 0x3F));
    out += char(0x80 | (c >> 6 & 0x3F));
    out += char(0x80 | (c & 0x3F));
  }
}

// One line, read from left to right.
class Line {
 public:
  Line(std::string_view text, std::string where) : rest_(text), where_(std::move(where)) {}

  // False for a line without a key.
  bool read(TomlItem& item) {
    skip_space();
    if (at_end()) return false;
    if (rest_.starts_with('[')) {
      fail_input(where_, ": a recipe has no sections; put all keys at the top");
    }
    item.key = key();
    skip_space();
    if (!rest_.starts_with('=')) {
      fail_input(where_, ": no = behind the key ", quoted(item.key), "; write key = value");
    }
    rest_.remove_prefix(1);
    skip_space();
    item.value = value(item.key);
    skip_space();
    if (!at_end()) {
      fail_input(where_, ": the key ", quoted(item.key), " takes one value, but ", quoted(rest_),
                 " follows it");
    }
    return true;
  }

 private:
  bool at_end() const { return rest_.empty() || rest_.starts_with('#'); }

  void skip_space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t"), rest_.size())); }

  std::string key() {
    if (rest_.starts_with('"') || rest_.starts_with('\'')) return text();
    const auto end =
        std::ranges::find_if_not(rest_, [](char c) { return is_bare_key(c) || c == '.'; });
    const auto length = size_t(end - rest_.begin());
    if (length == 0) fail_input(where_, ": ", quoted(rest_), " is no key; write key = value");
    const std::string out(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return out;
  }

  std::string value(const std::string& name) {
    if (rest_.starts_with('"') || rest_.starts_with('\'')) return text();
    if (rest_.starts_with('[') || rest_.starts_with('{')) {
      fail_input(where_, ": the key ", quoted(name), " takes one value, not a list or table");
    }
    const std::string_view bare = rest_.substr(0, rest_.find_first_of(" \t#"));
    if (!is_bare_value(bare)) {
      fail_input(where_, ": the value of ", quoted(name), " is ",
                 bare.empty() ? "missing" : quoted(bare),
                 "; write a number, true, false, or a text in double quotes");
    }
    rest_.remove_prefix(bare.size());
    std::string out(bare);
    std::erase(out, '_');
    if (out.starts_with('+')) out.erase(0, 1);
    return out;
  }

  // In double quotes with escapes, or in single quotes as it is.
  std::string text() {
    const char quote = rest_.front();
    if (rest_.starts_with(std::string(3, quote))) {
      fail_input(where_, ": a text of several lines is not taken; write it in one");
    }
    std::string out;
    size_t at = 1;
    for (; at < rest_.size() && rest_[at] != quote; ++at) {
      if (rest_[at] == '\\' && quote == '"') {
        at = escape(at + 1, out);
      } else {
        out += rest_[at];
      }
    }
    if (at >= rest_.size()) fail_input(where_, ": a text lacks its closing ", quote);
    rest_.remove_prefix(at + 1);
    return out;
  }

  // The escape whose letter is at `at`; returns its last place.
  size_t escape(size_t at, std::string& out) {
    constexpr std::string_view kLetters = "btnfr\"\\", kMeanings = "\b\t\n\f\r\"\\";
    const char letter = at < rest_.size() ? rest_[at] : '\0';
    if (const size_t i = kLetters.find(letter); letter != '\0' && i != std::string_view::npos) {
      out += kMeanings[i];
      return at;
    }
    const size_t digits = letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    const std::string_view hex = rest_.substr(std::min(at + 1, rest_.size()), digits);
    uint32_t c = 0;
    const auto got = std::from_chars(hex.data(), hex.data() + hex.size(), c, 16);
    if (digits == 0 || hex.size() != digits || got.ptr != hex.data() + digits || c > 0x10FFFF ||
        (c >= 0xD800 && c < 0xE000)) {
      fail_input(where_, ": \\ begins no escape that TOML knows; write \\\\ for one, or put the ",
                 "text into single quotes");
    }
    append_utf8(out, c);
    return at + digits;
  }

  std::string_view rest_;
  std::string where_;
};

}  // namespace

std::vector<TomlItem> read_flat_toml(std::string_view text, const std::string& source) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // the byte order mark of UTF-8
  std::vector<TomlItem> items;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::string where = cat(source, ", line ", number);
    TomlItem item;
    if (!Line(line, where).read(item)) continue;
    if (std::ranges::find(items, item.key, &TomlItem::key) != items.end()) {
      fail_input(where, ": the key ", quoted(item.key), " stands there twice; remove one");
    }
    items.push_back(std::move(item));
  }
  return items;
}

std::string toml_value(std::string_view value) {
  double number = 0;
  const auto got = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool is_number = got.ec == std::errc() && got.ptr == value.data() + value.size();
  // TOML has no number like 007 or 1. or .5
  const std::string_view digits = value.substr(value.starts_with('-') ? 1 : 0);
  const bool odd = (digits.size() > 1 && digits[0] == '0' && is_digit(digits[1])) ||
                   digits.starts_with('.') || digits.ends_with('.') ||
                   digits.find(".e") != std::string_view::npos;
  if (value == "true" || value == "false" || (is_number && !odd)) return std::string(value);
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += strf("\\u%04x", unsigned(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace laplace::cli
