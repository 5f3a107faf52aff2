// See input_lines.h.
#include "cli/input_lines.h"

#include <editline/readline.h>
#include <langinfo.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string_view>

namespace laplace::cli {

namespace {

// libedit reads characters of the locale; text is UTF-8 whatever that says.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

InputLines::InputLines() : terminal_(::isatty(STDIN_FILENO) != 0 && ::isatty(STDERR_FILENO) != 0) {
  if (!terminal_) return;
  use_utf8();
  rl_outstream = stderr;  // replies alone are on standard output
}

std::optional<std::string> InputLines::next(const std::string& prompt) {
  std::string line;
  if (terminal_) {
    const std::unique_ptr<char, decltype(&std::free)> typed(::readline(prompt.c_str()), std::free);
    if (typed == nullptr) {
      std::cerr << "\n" << std::flush;
      return std::nullopt;
    }
    line = typed.get();
    if (!line.empty()) ::add_history(line.c_str());
  } else if (!std::getline(std::cin, line)) {
    return std::nullopt;
  }
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

}  // namespace laplace::cli
