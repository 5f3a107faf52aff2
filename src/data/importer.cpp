// See importer.h.
#include "data/importer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "data/byte_reader.h"
#include "data/text_cut.h"

namespace laplace {

namespace {

class JsonLineSource : public RecordSource {
 public:
  JsonLineSource(const InputFile& file, std::unique_ptr<ByteReader> bytes, size_t limit)
      : file_(file), lines_(std::move(bytes), limit) {}

  bool next(Record& record) override {
    LineReader::Line line;
    while (lines_.next(line)) {
      const bool blank = line.text.find_first_not_of(" \t\r") == std::string::npos;
      if (!line.starts || blank) continue;  // the rest of a line that was too long; an empty one
      record = Record{std::move(line.text), true, !line.ends, true, &file_, line.number};
      return true;
    }
    return false;
  }

 private:
  const InputFile& file_;
  LineReader lines_;
};

// Gathers the text of a document and gives it out in pieces that end where ids are sure to.
class PieceCutter {
 public:
  PieceCutter(const InputFile& file, size_t piece_bytes)
      : file_(file), piece_bytes_(piece_bytes), wanted_(piece_bytes) {}

  std::string& text() { return text_; }
  bool full() const { return text_.size() >= wanted_; }

  // Cuts a piece off a full text. False when there is no certain place; then it grows to twice the
  // size first, so that the search stays linear.
  bool cut(Record& record) {
    const size_t place = certain_cut(text_);
    if (place == 0) {
      wanted_ = text_.size() * 2;
      return false;
    }
    give(text_.substr(0, place), record);
    text_.erase(0, place);
    wanted_ = std::max(piece_bytes_, text_.size() * 2);
    return true;
  }

  // Ends the document. False when nothing is left of it.
  bool finish(Record& record) {
    const bool any = !text_.empty();
    if (any) give(std::exchange(text_, {}), record);
    wanted_ = piece_bytes_;
    starts_ = true;
    return any;
  }

 private:
  void give(std::string text, Record& record) {
    record = Record{std::move(text), false, false, std::exchange(starts_, false), &file_, 0};
  }

  const InputFile& file_;
  size_t piece_bytes_;
  size_t wanted_;
  std::string text_;
  bool starts_ = true;
};

// A file is one document.
class TextSource : public RecordSource {
 public:
  TextSource(const InputFile& file, std::unique_ptr<ByteReader> bytes, size_t piece_bytes)
      : bytes_(std::move(bytes)), cutter_(file, piece_bytes), chunk_(size_t{1} << 18, '\0') {}

  bool next(Record& record) override {
    while (true) {
      if (cutter_.full() && cutter_.cut(record)) return true;
      const size_t got = bytes_->read(chunk_);
      if (got == 0) return cutter_.finish(record);
      cutter_.text().append(chunk_, 0, got);
    }
  }

 private:
  std::unique_ptr<ByteReader> bytes_;
  PieceCutter cutter_;
  std::string chunk_;
};

// A file is several documents, with lines between them that hold the separator and nothing else.
class SeparatedSource : public RecordSource {
 public:
  SeparatedSource(const InputFile& file, std::unique_ptr<ByteReader> bytes, std::string separator,
                  size_t piece_bytes)
      : lines_(std::move(bytes), std::max(piece_bytes, separator.size() + 2)),
        cutter_(file, piece_bytes),
        separator_(std::move(separator)) {}

  bool next(Record& record) override {
    while (true) {
      if (cutter_.full() && cutter_.cut(record)) return true;
      if (!lines_.next(line_)) return cutter_.finish(record);
      if (is_separator()) {
        if (cutter_.finish(record)) return true;
        continue;
      }
      cutter_.text() += line_.text;
      if (line_.newline) cutter_.text() += '\n';
    }
  }

 private:
  bool is_separator() const {
    std::string_view text = line_.text;
    if (!line_.starts || !line_.ends) return false;
    if (text.ends_with('\r')) text.remove_suffix(1);
    return text == separator_;
  }

  LineReader lines_;
  LineReader::Line line_;
  PieceCutter cutter_;
  std::string separator_;
};

// The field `column` of a JSON line.
std::string json_text(const Record& record, const ImportOptions& options) {
  const std::string source = cat(record.file->path, ", line ", record.line);
  if (record.too_long) {
    fail_input(source, " is longer than ", options.max_line_bytes, " bytes");
  }
  Json object = parse_json(record.bytes, source, JsonLimits{.max_bytes = options.max_line_bytes});
  if (!object.is_object()) fail_input(source, " is not a JSON object ({...})");
  const auto field = object.find(options.column);
  if (field == object.end()) {
    std::vector<std::string> names;
    for (const auto& [name, value] : object.items()) {
      if (value.is_string()) names.push_back(name);
    }
    fail_input(source, " has no field ", quoted(options.column),
               did_you_mean(options.column, names), " (--column names the field of the text)");
  }
  if (!field->is_string()) {
    fail_input(source, ": the field ", quoted(options.column), " is not a string");
  }
  return std::move(field->get_ref<std::string&>());
}

}  // namespace

Importer::Importer(ImportOptions options, std::function<void(int64_t)> on_bytes)
    : options_(std::move(options)),
      on_bytes_(std::move(on_bytes)),
      files_(find_inputs(options_.inputs, options_.format)) {}

bool Importer::next(Record& record) {
  while (true) {
    if (source_ && source_->next(record)) return true;
    if (next_file_ == files_.size()) return false;
    const InputFile& file = files_[next_file_++];
    auto bytes = open_bytes(file.path, on_bytes_);
    // Where the user says that it is text, its bytes are that, whatever they are.
    const bool as_it_is = options_.format == InputFormat::kText;
    if (!as_it_is) bytes = without_mark(std::move(bytes), file.path, !file.json);
    if (file.json) {
      source_ = std::make_unique<JsonLineSource>(file, std::move(bytes), options_.max_line_bytes);
    } else if (options_.document_separator.empty()) {
      source_ = std::make_unique<TextSource>(file, std::move(bytes), options_.piece_bytes);
    } else {
      source_ = std::make_unique<SeparatedSource>(
          file, std::move(bytes), options_.document_separator, options_.piece_bytes);
    }
  }
}

std::optional<std::string> Importer::take_text(Record&& record) const {
  if (!record.json) return std::move(record.bytes);
  try {
    return json_text(record, options_);
  } catch (const Error& error) {
    if (options_.skip_bad) return std::nullopt;
    fail_input(error.what(), "; correct the line, or leave such lines out with --skip-bad");
  }
}

int64_t Importer::input_bytes() const {
  int64_t total = 0;
  for (const InputFile& file : files_) {
    if (file.bytes < 0) return 0;
    total += file.bytes;
  }
  return total;
}

}  // namespace laplace
