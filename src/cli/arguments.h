// What CLI11 would read otherwise than its user wrote: "010" as the octal number 8, an empty value
// (a shell's variable that is not set) as 0 or as the next argument, and a text in brackets, such
// as the special token "[PAD]", as a list of what stands between them.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace laplace::cli {

// Marks the arguments that end in a bracket, so that none is taken for a list, and "--option=", so
// that the next argument is not taken for its value.
std::vector<std::string> marked(std::vector<std::string> arguments);
// `text`, from a message of CLI11, without the marks.
std::string without_marks(std::string text);

// Lets every option of the program and its verbs drop the marks, take numbers as decimal ones, and
// refuse an empty one.
// Call it when all of them are there.
void read_as_written(CLI::App& program);

}  // namespace laplace::cli
