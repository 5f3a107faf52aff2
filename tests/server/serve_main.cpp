// `laplace serve` alone: the whole program without what trains, so that a build with sanitizers
// takes half the time. ./dev sanitize gives it to the server's tests.
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "cli/verbs.h"

int main(int argc, char** argv) {
  laplace::init_process();
  CLI::App program("laplace serve, alone", "laplace");
  program.require_subcommand(1);
  laplace::cli::add_serve(program);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    laplace::log_error(error.what());
    return 2;
  } catch (const laplace::Error& error) {
    laplace::log_error(error.what());
    return error.exit_code();
  }
  return 0;
}
