// Lines of standard input. A terminal's are edited by libedit (arrow keys, what was typed before,
// lines of any length: the kernel's own editing ends at 4,095 bytes); a pipe's are read as they
// are.
#pragma once

#include <optional>
#include <string>

namespace laplace::cli {

class InputLines {
 public:
  InputLines();

  // Whether somebody types: then prompts are shown, on standard error.
  bool terminal() const { return terminal_; }
  // The next line without its end; nothing behind the last one (Ctrl-D). Ctrl-C ends the program.
  std::optional<std::string> next(const std::string& prompt);

 private:
  bool terminal_;
};

}  // namespace laplace::cli
