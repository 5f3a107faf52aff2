// See request_fields.h.
#include "serve/http/request_fields.h"

#include <algorithm>
#include <unordered_set>

#include "text/unicode.h"

namespace laplace {

namespace {

using simdjson::dom::element_type;

// Keys twice, and text that is not UTF-8 once its escapes are read (lone surrogates). Depth is
// bounded by the parser.
void check_values(JsonElement element, const std::string& param) {
  switch (element.type()) {
    case element_type::ARRAY: {
      for (const JsonElement item : JsonArray(element)) check_values(item, param);
      break;
    }
    case element_type::OBJECT: {
      std::unordered_set<std::string_view> seen;
      for (const auto& [key, value] : JsonObject(element)) {
        const std::string name = param.empty() ? std::string(key) : param;
        if (!is_valid_utf8(key)) fail_field(name, "a key holds half of a surrogate pair");
        if (!seen.insert(key).second) {
          fail_field(name, "the key ", quoted(key), " stands twice in one object");
        }
        check_values(value, name);
      }
      break;
    }
    case element_type::STRING:
      if (!is_valid_utf8(std::string_view(element))) {
        fail_field(param, quoted(param), " holds half of a surrogate pair");
      }
      break;
    default:
      break;
  }
}

// The text behind the string that begins at `at` (a quote), or npos.
size_t skip_string(std::string_view text, size_t at) {
  for (++at; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      return at + 1;
    }
  }
  return std::string_view::npos;
}

// Of a body that does not parse: the first field of the outer object whose value alone does not
// either, so that the message can name it ("" when it cannot be told).
std::string field_at_fault(std::string_view body) {
  simdjson::dom::parser parser;
  if (parser.allocate(1024, kMaxRequestDepth) != simdjson::SUCCESS) return {};
  const auto parses = [&](std::string_view value) {
    return parser.parse(value.data(), value.size(), true).error() == simdjson::SUCCESS;
  };
  size_t at = body.find('{');
  while (at != std::string_view::npos) {
    const size_t key = body.find('"', at);
    if (key == std::string_view::npos) break;
    const size_t key_end = skip_string(body, key);
    if (key_end == std::string_view::npos) break;
    size_t value = body.find(':', key_end);
    if (value == std::string_view::npos) break;
    size_t end = ++value;
    for (int depth = 0; end < body.size(); ++end) {
      const char c = body[end];
      if (c == '"') {
        end = skip_string(body, end);
        if (end == std::string_view::npos) return {};
        --end;
      } else if (c == '[' || c == '{') {
        ++depth;
      } else if (c == ']' || c == '}') {
        if (--depth < 0) break;
      } else if (c == ',' && depth == 0) {
        break;
      }
    }
    const std::string_view name = body.substr(key + 1, key_end - key - 2);
    if (name.size() <= 64 && is_valid_utf8(name) && !parses(body.substr(value, end - value))) {
      return std::string(name);
    }
    if (end >= body.size() || body[end] != ',') break;
    at = end + 1;
  }
  return {};
}

std::string_view kind_of(JsonElement element) {
  switch (element.type()) {
    case element_type::ARRAY:
      return "a list";
    case element_type::OBJECT:
      return "an object";
    case element_type::STRING:
      return "a text";
    case element_type::BOOL:
      return "true or false";
    case element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

std::string shown(JsonElement element) {
  const auto type = element.type();
  if (type == element_type::INT64) return cat(int64_t(element));
  if (type == element_type::UINT64) return cat(uint64_t(element));
  if (type == element_type::DOUBLE) return to_line(Json(double(element)));
  if (type == element_type::BOOL) return bool(element) ? "true" : "false";
  return std::string(kind_of(element));
}

}  // namespace

int64_t integer_of(JsonElement element, const std::string& param, int64_t low, int64_t high) {
  int64_t value = 0;
  // is_int64 is false for text, fractions and what int64 does not hold.
  if (!element.is_int64() || element.get(value) != simdjson::SUCCESS || value < low ||
      value > high) {
    fail_field(param, param, " is ", shown(element), ", but must be a whole number from ", low,
               " to ", high);
  }
  return value;
}

double number_of(JsonElement element, const std::string& param, double low, double high) {
  double value = 0;
  if (!element.is_number() || element.get(value) != simdjson::SUCCESS ||
      !(value >= low && value <= high)) {
    fail_field(param, param, " is ", shown(element), ", but must be a number from ", low, " to ",
               high);
  }
  return value;
}

bool boolean_of(JsonElement element, const std::string& param) {
  if (!element.is_bool()) fail_field(param, param, " must be true or false");
  return bool(element);
}

std::string_view text_of(JsonElement element, const std::string& param) {
  if (!element.is_string()) {
    fail_field(param, param, " is ", kind_of(element), ", but must be a text");
  }
  return std::string_view(element);
}

JsonArray array_of(JsonElement element, const std::string& param) {
  if (!element.is_array()) {
    fail_field(param, param, " is ", kind_of(element), ", but must be a list");
  }
  return JsonArray(element);
}

JsonObject object_of(JsonElement element, const std::string& param) {
  if (!element.is_object()) {
    fail_field(param, param, " is ", kind_of(element), ", but must be an object");
  }
  return JsonObject(element);
}

RequestFields::RequestFields(std::string_view body) {
  // The byte order mark of UTF-8, which Windows' editors put in front; RFC 8259 lets it be ignored.
  if (body.starts_with("\xEF\xBB\xBF")) body.remove_prefix(3);
  if (parser_.allocate(std::max<size_t>(body.size(), 64), kMaxRequestDepth) != simdjson::SUCCESS) {
    throw ApiError(503, "", "", "there is no memory to read the request; try again");
  }
  JsonElement root;
  const auto error = parser_.parse(body.data(), body.size(), true).get(root);
  if (error != simdjson::SUCCESS) {
    const std::string param = field_at_fault(body);
    fail_field(param, "the body is not JSON that can be taken",
               param.empty() ? "" : cat(" (field ", quoted(param), ")"), ": ",
               simdjson::error_message(error));
  }
  if (!root.is_object()) fail_field("", "the body must be a JSON object");
  check_values(root, "");
  object_ = JsonObject(root);
}

std::optional<JsonElement> RequestFields::any(std::string_view name) {
  known_.emplace_back(name);
  JsonElement element;
  if (object_.at_key(name).get(element) != simdjson::SUCCESS || element.is_null()) {
    return std::nullopt;
  }
  return element;
}

std::optional<int64_t> RequestFields::integer(std::string_view name, int64_t low, int64_t high) {
  const auto element = any(name);
  if (!element) return std::nullopt;
  return integer_of(*element, std::string(name), low, high);
}

std::optional<double> RequestFields::number(std::string_view name, double low, double high) {
  const auto element = any(name);
  if (!element) return std::nullopt;
  return number_of(*element, std::string(name), low, high);
}

std::optional<bool> RequestFields::boolean(std::string_view name) {
  const auto element = any(name);
  if (!element) return std::nullopt;
  return boolean_of(*element, std::string(name));
}

std::optional<std::string_view> RequestFields::text(std::string_view name) {
  const auto element = any(name);
  if (!element) return std::nullopt;
  return text_of(*element, std::string(name));
}

void RequestFields::ignore(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) known_.emplace_back(name);
}

void RequestFields::refuse(std::string_view name, std::string_view why) {
  const auto element = any(name);
  if (!element) return;
  const bool empty = (element->is_array() && JsonArray(*element).size() == 0) ||
                     (element->is_object() && JsonObject(*element).size() == 0) ||
                     (element->is_string() && std::string_view(*element).empty()) ||
                     (element->is_bool() && !bool(*element)) ||
                     (element->is_int64() && int64_t(*element) == 0);
  if (!empty) fail_field(std::string(name), name, ": ", why);
}

void RequestFields::finish() const {
  for (const auto& [key, value] : object_) {
    if (value.is_null()) continue;  // as if it were left out
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
      throw ApiError(400, std::string(key.substr(0, 64)), "unknown_field",
                     cat("the field ", quoted(key), " is not known", did_you_mean(key, known_)));
    }
  }
}

}  // namespace laplace
