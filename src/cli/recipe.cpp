// See recipe.h.
#include "cli/recipe.h"

#include <algorithm>

#include "base/error.h"
#include "base/files.h"
#include "cli/flat_toml.h"

namespace laplace::cli {

namespace {

std::string flag_name(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

// The flags a recipe may hold: those marked configurable.
std::vector<std::string> configurable_flags(const CLI::App& verb) {
  std::vector<std::string> names;
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_configurable() && !option->get_lnames().empty()) {
      names.push_back(option->get_lnames()[0]);
    }
  }
  return names;
}

std::vector<std::string> flags_of(const std::string& file, const CLI::App& verb) {
  const auto known = configurable_flags(verb);
  std::vector<std::string> flags;
  for (const TomlItem& item : read_flat_toml(read_file(file, uint64_t{1} << 20), file)) {
    const std::string name = flag_name(item.key);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      fail_input(file, " has the unknown key ", quoted(item.key), remove_or_correct(name, known));
    }
    if (item.value.empty()) {
      fail_input(file, ": the key ", quoted(item.key), " is empty; give it a value, or remove it");
    }
    flags.push_back("--" + name + "=" + item.value);
  }
  return flags;
}

// A length of the run on the command line takes the place of the recipe's, of whatever kind.
void keep_one_budget(const std::vector<std::string>& arguments, std::vector<std::string>& flags) {
  const auto is_budget = [](const std::string& argument) {
    const std::string name = argument.substr(0, argument.find('='));
    return name == "--steps" || name == "--minutes" || name == "--tokens";
  };
  if (std::ranges::any_of(arguments, is_budget)) std::erase_if(flags, is_budget);
}

}  // namespace

std::vector<std::string> expand_recipe(std::vector<std::string> arguments, const CLI::App& verb) {
  const auto at = std::ranges::find_if(
      arguments, [](const std::string& argument) { return !argument.starts_with('-'); });
  if (at == arguments.end() || *at != verb.get_name()) return arguments;
  const size_t behind_verb = size_t(at - arguments.begin()) + 1;
  std::vector<std::string> flags;
  for (size_t i = behind_verb; i < arguments.size();) {
    const std::string prefix = "--recipe=";
    std::string file;
    size_t taken = 0;
    if (arguments[i] == "--recipe" && i + 1 < arguments.size()) {
      file = arguments[i + 1];
      taken = 2;
    } else if (arguments[i].rfind(prefix, 0) == 0) {
      file = arguments[i].substr(prefix.size());
      taken = 1;
    }
    if (taken == 0) {
      ++i;
      continue;
    }
    const auto more = flags_of(file, verb);
    flags.insert(flags.end(), more.begin(), more.end());
    arguments.erase(arguments.begin() + ptrdiff_t(i), arguments.begin() + ptrdiff_t(i + taken));
  }
  keep_one_budget(arguments, flags);
  arguments.insert(arguments.begin() + ptrdiff_t(behind_verb), flags.begin(), flags.end());
  return arguments;
}

std::string resolved_recipe(const CLI::App& verb) {
  std::string text = "# Every setting of this run; use with: laplace " + verb.get_name() +
                     " --recipe recipe.toml\n";
  for (const CLI::Option* option : verb.get_options()) {
    if (!option->get_configurable() || option->get_lnames().empty()) continue;
    std::string value = option->count() > 0 ? option->results().back() : option->get_default_str();
    if (value.empty()) continue;
    text += option->get_lnames()[0] + " = " + toml_value(value) + "\n";
  }
  return text;
}

}  // namespace laplace::cli
