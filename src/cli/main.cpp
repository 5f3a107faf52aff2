// The program: process modes, the table of verbs, and how errors become sentences and exit codes.
#include <algorithm>
#include <exception>
#include <iostream>
#include <new>

#include <c10/util/Exception.h>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/strings.h"
#include "cli/arguments.h"
#include "cli/recipe.h"
#include "cli/verbs.h"
#include "ops/simd/targets.h"

namespace laplace::cli {

namespace {

// All long option names and subcommands of the (sub)command that was being parsed.
std::vector<std::string> known_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
  }
  return names;
}

// The innermost subcommand that was named on the command line.
const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.back());
}

// "bench train": as it was called, without the program.
std::string call_of(const CLI::App& app) {
  const CLI::App* const parent = app.get_parent();
  if (parent == nullptr) return "";
  const std::string before = call_of(*parent);
  return before + (before.empty() ? "" : " ") + app.get_name();
}

// One sentence for a command line or recipe that does not parse, with the nearest known name.
int explain(const CLI::App& program, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    return program.exit(error);  // --help, --version
  }
  const CLI::App& app = innermost(program);
  std::string hint;
  for (const std::string& extra : app.remaining(true)) {
    hint = extra == "--verbose" ? ", which stands before the verb"
                                : did_you_mean(extra.substr(0, extra.find('=')), known_names(app));
    if (!hint.empty()) break;
  }
  const std::string call = call_of(app);
  const auto extras = app.remaining();
  if (error.get_name() == "RequiredError" && app.get_require_subcommand_min() > 0 &&
      app.get_subcommands().empty() && !extras.empty()) {
    log_error(quoted(without_marks(extras.front())), " is no verb of laplace",
              call.empty() ? "" : " ", call, hint, " (--help shows them)");
    return 2;
  }
  log_error(without_marks(error.what()), hint, " (laplace ", call, call.empty() ? "" : " ",
            "--help shows the options)");
  return 2;
}

// What the operators read from the environment is refused like any other input.
void check_environment() {
  try {
    (void)ops::fused_kernels();
  } catch (const c10::Error& error) {
    fail_input(error.what_without_backtrace());
  }
}

int run(int argc, char** argv) {
  CLI::App program("laplace trains and serves language models whose state has a fixed size.",
                   "laplace");
  program.require_subcommand(1);
  program.set_version_flag("--version", "laplace " LAPLACE_VERSION);
  program.add_flag_callback(
      "--verbose", [] { set_log_level(LogLevel::kDebug); }, "Show debug messages");
  add_tokenizer(program);
  add_data(program);
  add_train(program);
  add_generate(program);
  add_chat(program);
  add_eval(program);
  add_bench(program);
  add_inspect(program);
  add_serve(program);
  read_as_written(program);
  program.parse_complete_callback(check_environment);
  try {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    arguments = marked(expand_recipe(std::move(arguments), *program.get_subcommand("train")));
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them last first
    program.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return explain(program, error);
  }
  return 0;
}

}  // namespace

}  // namespace laplace::cli

int main(int argc, char** argv) {
  laplace::init_process();
  try {
    const int code = laplace::cli::run(argc, argv);
    if (std::cout.flush()) return code;
    laplace::log_error("cannot write to standard output; what was printed is not whole");
  } catch (const laplace::Error& error) {
    laplace::log_error(error.what());
    return error.exit_code();
  } catch (const c10::Error& error) {
    laplace::log_error(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    laplace::log_error("out of memory; use a smaller model, batch or sequence");
  } catch (const std::exception& error) {
    laplace::log_error(error.what());
  }
  return 1;
}
