// The verbs of the program. Each `add_*` puts its subcommand, options, help text and example into
// `program`; a parsed subcommand runs in its callback and throws laplace::Error on bad input.
#pragma once

#include <CLI/CLI.hpp>

namespace laplace::cli {

void add_tokenizer(CLI::App& program);  // tokenizer train|encode|decode
void add_data(CLI::App& program);       // data prepare|info
void add_train(CLI::App& program);
void add_generate(CLI::App& program);
void add_chat(CLI::App& program);
void add_eval(CLI::App& program);   // eval score
void add_bench(CLI::App& program);  // bench decode|prefill|serve|open|train|op
void add_bench_open(CLI::App& bench);
void add_bench_train(CLI::App& bench);  // bench train|op
void add_inspect(CLI::App& program);
void add_serve(CLI::App& program);

}  // namespace laplace::cli
