// Which files a list of inputs means, and how each is to be read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace laplace {

enum class InputFormat { kAuto, kText, kJsonLines };

// "auto", "text" or "jsonl"; throws Error(kBadInput) for anything else.
InputFormat parse_input_format(const std::string& name);

struct InputFile {
  std::string path;    // "-" is standard input
  bool json = false;   // one JSON object a line; else one text
  int64_t bytes = -1;  // on the disk, -1 where unknown (pipes)
};

// Files and "-" as given; directories as all they hold, below too, in the byte order of their
// paths. kAuto goes by the endings: .jsonl and .ndjson are JSON lines, .txt, .md and what is named
// outright are text, each also with .gz or .zst behind. In directories hidden entries are left
// alone and other endings are passed over with a warning that counts them. Throws Error(kBadInput)
// for a path that does not exist, for parquet, for .json, and when nothing is found.
std::vector<InputFile> find_inputs(const std::vector<std::string>& inputs, InputFormat format);

}  // namespace laplace
