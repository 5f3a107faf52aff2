// See json.h.
#include "base/json.h"

#include <cmath>
#include <set>

#include "base/error.h"

namespace laplace {

Json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    fail_input(source, " is larger than the limit of ", human_bytes(double(limits.max_bytes)),
               " for JSON; give a smaller file");
  }
  std::vector<std::set<std::string>> keys;  // of the objects that are open, outermost first
  const auto watch = [&](int depth, nlohmann::detail::parse_event_t event, Json& parsed) {
    using Event = nlohmann::detail::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= limits.max_depth) {
        fail_input(source, " nests deeper than ", limits.max_depth, " levels; flatten it");
      }
      if (event == Event::object_start) keys.emplace_back();
    } else if (event == Event::object_end) {
      keys.pop_back();
    } else if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        fail_input(source, " has the key ", quoted(key), " twice in one object; remove one");
      }
    }
    return true;
  };
  // The parser would take one for the end of the text, whatever follows.
  if (text.find('\0') != std::string_view::npos) {
    fail_input(source, " is not valid JSON: it holds a zero byte");
  }
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception& error) {
    fail_input(source, " is not valid JSON: ", error.what());
  }
}

Json load_json(const Path& path, const JsonLimits& limits) {
  return parse_json(read_file(path, limits.max_bytes), path.string(), limits);
}

std::string to_text(const Json& value) {
  return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

JsonFields::JsonFields(const Json& object, std::string source)
    : object_(object), source_(std::move(source)) {
  if (!object.is_object()) fail_input(source_, " must hold a JSON object ({...})");
}

const Json* JsonFields::find(const std::string& name, bool required) {
  known_.push_back(name);
  const auto at = object_.find(name);
  if (at != object_.end()) return &*at;
  if (required) fail_input(source_, " lacks the field ", quoted(name), "; add it");
  return nullptr;
}

int64_t JsonFields::integer(const std::string& name, int64_t low, int64_t high,
                            std::optional<int64_t> fallback) {
  const Json* const value = find(name, !fallback);
  if (value == nullptr) return *fallback;
  const bool fits = value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > uint64_t(INT64_MAX));
  if (!fits || value->get<int64_t>() < low || value->get<int64_t>() > high) {
    fail_input(source_, ": the field ", quoted(name), " is ", quoted(to_line(*value)),
               ", but must be a whole number from ", low, " to ", high);
  }
  return value->get<int64_t>();
}

double JsonFields::number(const std::string& name, double low, double high,
                          std::optional<double> fallback) {
  const Json* const value = find(name, !fallback);
  if (value == nullptr) return *fallback;
  const double got = value->is_number() ? value->get<double>() : std::nan("");
  if (!(got >= low && got <= high)) {
    fail_input(source_, ": the field ", quoted(name), " is ", quoted(to_line(*value)),
               ", but must be a number from ", low, " to ", high);
  }
  return got;
}

std::string JsonFields::text(const std::string& name, std::optional<std::string> fallback) {
  const Json* const value = find(name, !fallback);
  if (value == nullptr) return *fallback;
  if (!value->is_string()) {
    fail_input(source_, ": the field ", quoted(name), " must be a string in double quotes");
  }
  return value->get<std::string>();
}

bool JsonFields::boolean(const std::string& name, std::optional<bool> fallback) {
  const Json* const value = find(name, !fallback);
  if (value == nullptr) return *fallback;
  if (!value->is_boolean()) {
    fail_input(source_, ": the field ", quoted(name), " must be true or false");
  }
  return value->get<bool>();
}

const Json& JsonFields::any(const std::string& name) {
  static const Json null;
  const Json* const value = find(name, false);
  return value == nullptr ? null : *value;
}

void JsonFields::finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), name) == known_.end()) {
      fail_input(source_, " has the unknown field ", quoted(name), remove_or_correct(name, known_));
    }
  }
}

}  // namespace laplace
