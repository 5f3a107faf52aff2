// The JSON object of a request's body, read field by field with types and ranges.
//
// simdjson reads it: linear time, no recursion. Refused with 400: syntax errors, bytes that are not
// UTF-8, lone surrogates, a key twice in one object, depth above kMaxRequestDepth, numbers beyond
// 64 bits, anything behind the object. Errors name the field ("param").
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/api_error.h"

namespace laplace {

inline constexpr size_t kMaxRequestDepth = 64;

using JsonElement = simdjson::dom::element;
using JsonObject = simdjson::dom::object;
using JsonArray = simdjson::dom::array;

// `element` as a value of the type, or 400 that says what `param` must be.
int64_t integer_of(JsonElement element, const std::string& param, int64_t low, int64_t high);
double number_of(JsonElement element, const std::string& param, double low, double high);
bool boolean_of(JsonElement element, const std::string& param);
std::string_view text_of(JsonElement element, const std::string& param);
JsonArray array_of(JsonElement element, const std::string& param);
JsonObject object_of(JsonElement element, const std::string& param);

// Not thread-safe. What it returns lives as long as it does.
class RequestFields {
 public:
  explicit RequestFields(std::string_view body);

  // null counts as absent. Asking marks the field as known.
  std::optional<JsonElement> any(std::string_view name);
  bool has(std::string_view name) { return any(name).has_value(); }
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high);
  std::optional<double> number(std::string_view name, double low, double high);
  std::optional<bool> boolean(std::string_view name);
  std::optional<std::string_view> text(std::string_view name);

  // Fields that change nothing here, whatever they hold.
  void ignore(std::initializer_list<std::string_view> names);
  // A field that we do not offer: 400 with `why`, unless it is absent, null, false, 0, or empty.
  void refuse(std::string_view name, std::string_view why);
  // 400 for the first field that was never asked for, naming the nearest known one.
  void finish() const;

 private:
  simdjson::dom::parser parser_;
  JsonObject object_;
  std::vector<std::string> known_;
};

}  // namespace laplace
