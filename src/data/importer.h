// From input files to documents, in pieces that can be tokenized apart from one another.
//
// Reading (serial: files, decompression, lines) is kept apart from taking the text out of a record
// (JSON, on any thread), so that the costly part can run on all cores.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/inputs.h"

namespace laplace {

struct ImportOptions {
  std::vector<std::string> inputs;
  InputFormat format = InputFormat::kAuto;
  std::string column = "text";     // the field of a JSON line that holds the document
  std::string document_separator;  // a line equal to it ends a document of a text; "": none
  bool skip_bad = false;           // leave out JSON lines that cannot be used, instead of failing
  size_t piece_bytes = size_t{1} << 20;     // long texts come in pieces of at most about this
  size_t max_line_bytes = size_t{1} << 28;  // of a JSON line
};

// A piece of the input: a JSON line, or a text or part of one.
struct Record {
  std::string bytes;
  bool json = false;
  bool too_long = false;        // a JSON line beyond the limit; `bytes` is its beginning
  bool starts_document = true;  // false for the second and later pieces of a long text
  const InputFile* file = nullptr;
  int64_t line = 0;  // of a JSON line, from 1
};

// One file, or the part of it that is being read.
class RecordSource {
 public:
  virtual ~RecordSource() = default;
  virtual bool next(Record& record) = 0;  // false at the end
};

class Importer {
 public:
  // `on_bytes` is called with counts of bytes read from the disk, for progress.
  explicit Importer(ImportOptions options, std::function<void(int64_t)> on_bytes = {});

  // The next record in the order of the inputs; false at the end. Not thread-safe.
  bool next(Record& record);

  // The text of a record; nothing when it is a bad JSON line and skip_bad is set. The pieces of a
  // document, one after another, are its bytes. May be called on any number of threads.
  std::optional<std::string> take_text(Record&& record) const;

  int64_t files() const { return static_cast<int64_t>(files_.size()); }
  int64_t input_bytes() const;  // on the disk, 0 when a pipe is among the inputs

 private:
  ImportOptions options_;
  std::function<void(int64_t)> on_bytes_;
  std::vector<InputFile> files_;
  size_t next_file_ = 0;
  std::unique_ptr<RecordSource> source_;
};

}  // namespace laplace
