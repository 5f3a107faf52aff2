// See flat_toml.h.
#include "cli/flat_toml.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include <toml++/toml.h>

#include "base/error.h"

namespace laplace::cli {

namespace {

std::string shortest(double number) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, number);
  return {text, end.ptr};
}

// "" where the value is neither a text nor a number nor true nor false.
std::string value_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) return shortest(number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  return "";
}

// Whether TOML reads back the same where it stands bare: a directory may be called 1e5.
bool bare(const std::string& value) {
  try {
    const toml::table table = toml::parse("x = " + value);
    const toml::node* const node = table.get("x");
    return table.size() == 1 && node != nullptr && (node->is_number() || node->is_boolean()) &&
           value_of(*node) == value;
  } catch (const toml::parse_error&) {
    return false;
  }
}

}  // namespace

std::vector<TomlItem> read_flat_toml(std::string_view text, const std::string& source) {
  toml::table table;
  try {
    table = toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    fail_input(source, ", line ", error.source().begin.line,
               ", is not TOML: ", error.description());
  }
  std::vector<TomlItem> items;
  for (const auto& [key, node] : table) {
    const auto line = node.source().begin.line;
    if (node.is_table() || node.is_array()) {
      fail_input(source, ", line ", line, ": a recipe has no sections and no lists; put all keys ",
                 "at the top, with one value each");
    }
    if (node.is_date() || node.is_time() || node.is_date_time()) {
      fail_input(source, ", line ", line, ": the value of ", quoted(std::string(key.str())),
                 " is a date; put a text in quotes");
    }
    items.push_back({std::string(key.str()), value_of(node), int64_t(line)});
  }
  std::ranges::sort(items, {}, &TomlItem::line);
  return items;
}

std::string toml_value(const std::string& value) {
  if (bare(value)) return value;
  const toml::value<std::string> text(value);
  std::ostringstream out;
  out << toml::toml_formatter(text, toml::format_flags::none);
  return out.str();
}

}  // namespace laplace::cli
