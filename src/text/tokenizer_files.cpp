// Tokenizers on disk: which files to open, and how tokenizer.json is written.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer_json.h"

namespace laplace {

namespace {

Tokenizer open_json(const Path& path) {
  return Tokenizer(tables_from_json(read_file(path), path.string()));
}

Tokenizer open_gpt2(const Path& encoder, const Path& merges) {
  return Tokenizer(
      tables_from_gpt2(read_file(encoder), encoder.string(), read_file(merges), merges.string()));
}

// `text` as a JSON string.
std::string json_string(std::string_view text) { return nlohmann::json(text).dump(); }

// A key of the vocabulary.
std::string key_of(const Tokenizer::Tables& tables, size_t id) {
  const std::string& piece = tables.pieces[id];
  return json_string(tables.special[id] ? piece : to_alphabet(piece));
}

std::string added_token(const Tokenizer::Tables& tables, size_t id) {
  const auto at = tables.forms.find(TokenId(id));
  const SpecialForm form = at == tables.forms.end() ? SpecialForm() : at->second;
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  return cat("    {\"id\": ", id, ", \"content\": ", json_string(tables.pieces[id]),
             ", \"single_word\": ", flag(form.single_word), ", \"lstrip\": ", flag(form.lstrip),
             ", \"rstrip\": ", flag(form.rstrip), ", \"normalized\": false, \"special\": true}");
}

constexpr std::string_view kSplitting =
    "  \"normalizer\": null,\n"
    "  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
    "\"trim_offsets\": true, \"use_regex\": true},\n"
    "  \"post_processor\": null,\n"
    "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
    "\"trim_offsets\": true, \"use_regex\": true},\n";

constexpr std::string_view kModel =
    "  \"model\": {\n"
    "    \"type\": \"BPE\",\n"
    "    \"dropout\": null,\n"
    "    \"unk_token\": null,\n"
    "    \"continuing_subword_prefix\": null,\n"
    "    \"end_of_word_suffix\": null,\n"
    "    \"fuse_unk\": false,\n"
    "    \"byte_fallback\": false,\n"
    "    \"ignore_merges\": false,\n";

}  // namespace

std::string tables_to_json(const Tokenizer::Tables& tables) {
  std::string out = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n";
  // Appends a list with commas between its lines.
  const auto list = [&](std::string_view open, size_t count, auto line, std::string_view close) {
    out += open;
    bool first = true;
    for (size_t i = 0; i < count; ++i) {
      const std::string text = line(i);
      if (text.empty()) continue;
      out += first ? "\n" : ",\n";
      out += text;
      first = false;
    }
    out += close;
  };
  const size_t tokens = tables.pieces.size();
  list(
      "  \"added_tokens\": [", tokens,
      [&](size_t id) { return tables.special[id] ? added_token(tables, id) : ""; }, "\n  ],\n");
  out += kSplitting;
  out += kModel;
  list(
      "    \"vocab\": {", tokens,
      [&](size_t id) { return "      " + key_of(tables, id) + ": " + std::to_string(id); },
      "\n    },\n");
  // "a b" and not ["a", "b"]: all versions of the library read it, and no part has a space.
  list(
      "    \"merges\": [", tables.merges.size(),
      [&](size_t rank) {
        const auto& [left, right, id] = tables.merges[rank];
        return "      " + json_string(to_alphabet(tables.piece(left)) + " " +
                                      to_alphabet(tables.piece(right)));
      },
      "\n    ]\n  }\n}\n");
  return out;
}

Tokenizer Tokenizer::open(const Path& path) {
  if (!std::filesystem::is_directory(path)) {
    const std::string name = path.filename().string();
    const Path folder = path.parent_path();
    if (name == "vocab.bpe" || name == "encoder.json") {
      return open_gpt2(folder / "encoder.json", folder / "vocab.bpe");
    }
    if (name == "merges.txt" || name == "vocab.json") {
      return open_gpt2(folder / "vocab.json", folder / "merges.txt");
    }
    return open_json(path);
  }
  const auto has = [&](const char* name) { return std::filesystem::exists(path / name); };
  if (has("tokenizer.json")) return open_json(path / "tokenizer.json");
  if (has("encoder.json") && has("vocab.bpe")) {
    return open_gpt2(path / "encoder.json", path / "vocab.bpe");
  }
  if (has("vocab.json") && has("merges.txt")) {  // the same two under Hugging Face's names
    return open_gpt2(path / "vocab.json", path / "merges.txt");
  }
  fail_input(path.string(), " has no tokenizer.json (nor vocab.bpe and encoder.json); ",
             "make one with: laplace tokenizer train --out ", path.string());
}

Tokenizer Tokenizer::parse_json(std::string_view text, const std::string& source) {
  return Tokenizer(tables_from_json(text, source));
}

void Tokenizer::save(const Path& directory) const {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    fail_input("cannot make the directory ", directory.string(), ": ", error.message(),
               "; choose another one");
  }
  write_file_atomic(directory / "tokenizer.json", to_json());
}

std::string Tokenizer::to_json() const { return tables_to_json(*tables_); }

}  // namespace laplace
