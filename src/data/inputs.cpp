// See inputs.h.
#include "data/inputs.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "data/byte_reader.h"

namespace laplace {

namespace {

namespace fs = std::filesystem;

// ".txt" of "A/B.TXT.gz".
std::string content_ending(const fs::path& path) {
  const std::string name = path.string();
  std::string ending = fs::path(without_compression(name)).extension().string();
  std::ranges::transform(ending, ending.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending;
}

bool is_json_lines(std::string_view ending) { return ending == ".jsonl" || ending == ".ndjson"; }

void refuse_parquet(const fs::path& path) {
  if (content_ending(path) != ".parquet") return;
  fail_input(path.string(), " is a parquet file, which is not supported yet; convert it to .jsonl ",
             "(one object with the field \"text\" a line), for instance with pandas: ",
             "read_parquet(...).to_json(..., orient=\"records\", lines=True)");
}

int64_t size_on_disk(const fs::path& path) {
  std::error_code code;
  if (!fs::is_regular_file(path, code)) return -1;
  const auto size = fs::file_size(path, code);
  return code ? -1 : static_cast<int64_t>(size);
}

InputFile open_named(const std::string& input, InputFormat format) {
  const std::string ending = content_ending(input);
  if (format == InputFormat::kAuto && ending == ".json") {
    fail_input(input,
               " is a single JSON file, which has no documents to take; convert it to one "
               "object a line (.jsonl), or say --format jsonl if it is that already");
  }
  const bool json =
      format == InputFormat::kAuto ? is_json_lines(ending) : format == InputFormat::kJsonLines;
  return {input, json, size_on_disk(input)};
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with("."); }

void add_directory(const fs::path& directory, InputFormat format, std::vector<InputFile>& files) {
  std::vector<std::string> found;
  std::map<std::string, int64_t> passed_over;  // by ending
  std::error_code code;
  fs::recursive_directory_iterator entry(directory, code);
  for (; !code && entry != fs::recursive_directory_iterator(); entry.increment(code)) {
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
      continue;
    }
    std::error_code unreadable;  // a broken link is no regular file
    if (entry->is_symlink(unreadable) && entry->is_directory(unreadable)) {
      log_warning("passing over ", entry->path().string(),
                  ", a link to a directory; name it with --input if it is meant");
    }
    if (!entry->is_regular_file(unreadable)) {
      if (!entry->is_directory(unreadable)) {
        log_warning("passing over ", entry->path().string(), ", which is no file");
      }
      continue;
    }
    refuse_parquet(entry->path());
    const std::string ending = content_ending(entry->path());
    if (ending == ".txt" || ending == ".md" || is_json_lines(ending)) {
      found.push_back(entry->path().string());
    } else {
      ++passed_over[ending.empty() ? "without an ending" : ending];
    }
  }
  if (code) fail_input("cannot list ", directory.string(), ": ", code.message());
  if (!passed_over.empty()) {
    std::string list;
    for (const auto& [ending, count] : passed_over) {
      list += cat(list.empty() ? "" : ", ", count, " ", ending);
    }
    log_warning("passing over files in ", directory.string(),
                " that are not .txt, .md or .jsonl: ", list);
  }
  std::ranges::sort(found);
  for (const std::string& path : found) files.push_back(open_named(path, format));
}

}  // namespace

InputFormat parse_input_format(const std::string& name) {
  if (name == "auto") return InputFormat::kAuto;
  if (name == "text") return InputFormat::kText;
  if (name == "jsonl") return InputFormat::kJsonLines;
  fail_input("--format is ", quoted(name), ", but must be auto, text or jsonl");
}

std::vector<InputFile> find_inputs(const std::vector<std::string>& inputs, InputFormat format) {
  std::vector<InputFile> files;
  for (const std::string& input : inputs) {
    std::error_code code;
    if (input == "-") {
      files.push_back({input, format == InputFormat::kJsonLines, -1});
    } else if (fs::is_directory(input, code)) {
      add_directory(input, format, files);
    } else {
      if (!fs::exists(input, code)) {
        fail_input("the input ", input, " does not exist; check the path");
      }
      refuse_parquet(input);
      files.push_back(open_named(input, format));
    }
  }
  if (files.empty()) {
    fail_input("the inputs hold no .txt, .md or .jsonl file; name at least one with --input");
  }
  return files;
}

}  // namespace laplace
