// bench op: the fused operators beside the portable ones and a plain copy.
#pragma once

#include <CLI/CLI.hpp>

namespace laplace::cli {

void add_bench_ops(CLI::App& bench);

}  // namespace laplace::cli
