// Recipes: TOML files whose keys are the flags of a verb. A recipe's values stand in front of the
// command line's, so a flag overrides its recipe.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace laplace::cli {

// The program's arguments (without its name) with every `--recipe FILE` of `verb` replaced by the
// flags of that file, put right behind the verb. Keys may use '_' for '-'. Throws Error(kBadInput)
// naming the file, the key and the nearest known flag.
std::vector<std::string> expand_recipe(std::vector<std::string> arguments, const CLI::App& verb);

// All options of `verb` with their present values as a recipe.
std::string resolved_recipe(const CLI::App& verb);

}  // namespace laplace::cli
