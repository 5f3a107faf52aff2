// JSON with limits: the one reader for our own files (configs, tokenizers, safetensors headers,
// state.json). Requests from the network go through simdjson instead, see src/serve/http.
//
// Sources: https://json.nlohmann.me (SAX callbacks); RFC 8259.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace laplace {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  uint64_t max_bytes = uint64_t{64} << 20;
  int max_depth = 64;
};

// Parses `text`; `source` names it in errors. Refuses bad syntax, invalid UTF-8, duplicate keys,
// trailing garbage and depth beyond the limit. Throws Error(kBadInput).
Json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits = {});
Json load_json(const Path& path, const JsonLimits& limits = {});
// Two spaces of indent and a newline at the end; invalid UTF-8 is replaced, never thrown on.
std::string to_text(const Json& value);
// On one line, for log.jsonl.
std::string to_line(const Json& value);

// Reads the fields of one JSON object by name, with types and ranges, and refuses what it was not
// asked for. Errors name source, field and remedy.
class JsonFields {
 public:
  // `object` must outlive this. Throws when it is not an object.
  JsonFields(const Json& object, std::string source);

  bool has(const std::string& name) const { return object_.contains(name); }
  // A whole number in [low, high]; required unless `fallback` is given.
  int64_t integer(const std::string& name, int64_t low, int64_t high,
                  std::optional<int64_t> fallback = std::nullopt);
  // A finite number in [low, high].
  double number(const std::string& name, double low, double high,
                std::optional<double> fallback = std::nullopt);
  std::string text(const std::string& name, std::optional<std::string> fallback = std::nullopt);
  bool boolean(const std::string& name, std::optional<bool> fallback = std::nullopt);
  // Any value, or null when absent.
  const Json& any(const std::string& name);
  // Marks a field as known without reading it.
  void ignore(const std::string& name) { known_.push_back(name); }
  // Throws when the object has a field that was never asked for, naming the nearest known one.
  void finish() const;

 private:
  const Json* find(const std::string& name, bool required);

  const Json& object_;
  std::string source_;
  std::vector<std::string> known_;
};

}  // namespace laplace
