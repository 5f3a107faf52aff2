// The options of the verbs that read texts: which files, and how.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "data/importer.h"

namespace laplace::cli {

struct InputOptions {
  ImportOptions import;
  std::string format = "auto";

  // Throws Error(kBadInput) on a format that is none.
  ImportOptions resolve() const {
    ImportOptions out = import;
    out.format = parse_input_format(format);
    return out;
  }
};

inline void add_input_options(CLI::App& app, InputOptions& options) {
  ImportOptions& import = options.import;
  app.add_option("--input", import.inputs,
                 "Files, directories (walked in sorted order) or - for standard input: .txt and "
                 ".md are one document a file, .jsonl one a line; each also as .gz or .zst")
      ->required()
      ->type_name("PATH");
  app.add_option("--format", options.format,
                 "auto (by the ending of the name), text or jsonl, for all inputs")
      ->capture_default_str();
  app.add_option("--column", import.column, "The field of a JSON line that holds the text")
      ->capture_default_str();
  app.add_option("--document-separator", import.document_separator,
                 "A line that ends a document inside text files, such as '<|endoftext|>'")
      ->check([](const std::string& line) -> std::string {
        return line.find('\n') == std::string::npos ? "" : "holds a line break; give one line";
      });
  app.add_flag("--skip-bad", import.skip_bad, "Leave out and count bad JSON lines");
}

}  // namespace laplace::cli
