// The part of TOML that a recipe is: `key = value`, with comments. Tables, lists and dates are
// refused. https://toml.io/en/v1.0.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace laplace::cli {

struct TomlItem {
  std::string key;
  std::string
      value;  // of a text, without its quotes and escapes; of a number, in its shortest form
  int64_t line;
};

// In the order of the lines. Throws Error(kBadInput) that names `source` and the line.
std::vector<TomlItem> read_flat_toml(std::string_view text, const std::string& source);

// `value` as it stands behind "=": numbers, true and false bare, anything else as a text.
std::string toml_value(const std::string& value);

}  // namespace laplace::cli
