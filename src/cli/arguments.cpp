// See arguments.h.
#include "cli/arguments.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <string_view>

namespace laplace::cli {

namespace {

constexpr char kMark = '\x01';  // no argument of a shell script ends in it

// "-007" to "-7"; "0x10", "0.5" and "0" stay.
void drop_leading_zeros(std::string& number) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const size_t begin = number.starts_with('-') || number.starts_with('+') ? 1 : 0;
  size_t end = begin;
  while (end + 1 < number.size() && number[end] == '0' && is_digit(number[end + 1])) ++end;
  number.erase(begin, end - begin);
}

// Whether a number of CLI11's would not stop at the largest that there is.
bool fits_64_bits(const std::string& number) {
  int64_t with_sign = 0;
  uint64_t without = 0;
  const char* const begin = number.data() + (number.starts_with('+') ? 1 : 0);
  const char* const end = number.data() + number.size();
  return std::from_chars(begin, end, with_sign).ec != std::errc::result_out_of_range ||
         std::from_chars(begin, end, without).ec == std::errc();
}

bool takes(const CLI::Option& option, std::initializer_list<std::string_view> types) {
  return std::ranges::any_of(types, [name = option.get_type_name()](std::string_view type) {
    return name.starts_with(type);
  });
}

}  // namespace

std::vector<std::string> marked(std::vector<std::string> arguments) {
  for (std::string& argument : arguments) {
    const bool empty_value =
        argument.starts_with("--") && argument.find('=') == argument.size() - 1;
    if (argument.ends_with(']') || empty_value) argument += kMark;
  }
  return arguments;
}

std::string without_marks(std::string text) {
  std::erase(text, kMark);
  return text;
}

void read_as_written(CLI::App& program) {
  for (CLI::Option* const option : program.get_options()) {
    if (option->get_items_expected_max() == 0) continue;
    const bool whole = takes(*option, {"INT", "UINT", "SIZE"});
    const bool value = whole || takes(*option, {"FLOAT", "BOOLEAN"});
    option->transform(CLI::Validator(
        [whole, value](std::string& text) -> std::string {
          if (text.ends_with(kMark)) text.pop_back();
          if (value && text.empty()) return "is empty; give it a value, or leave it out";
          if (whole) drop_leading_zeros(text);
          return whole && !fits_64_bits(text) ? "is too large a number" : "";
        },
        ""));
  }
  for (CLI::App* const verb : program.get_subcommands([](CLI::App*) { return true; })) {
    read_as_written(*verb);
  }
}

}  // namespace laplace::cli
