// See arguments.h.
#include "cli/arguments.h"

#include <algorithm>

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

bool takes_number(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("SIZE");
}

}  // namespace

std::vector<std::string> marked(std::vector<std::string> arguments) {
  for (std::string& argument : arguments) {
    if (argument.ends_with(']')) argument += kMark;
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
    const bool number = takes_number(*option);
    option->transform(CLI::Validator(
        [number](std::string& text) {
          if (text.ends_with(kMark)) text.pop_back();
          if (number) drop_leading_zeros(text);
          return std::string();
        },
        ""));
  }
  for (CLI::App* const verb : program.get_subcommands([](CLI::App*) { return true; })) {
    read_as_written(*verb);
  }
}

}  // namespace laplace::cli
