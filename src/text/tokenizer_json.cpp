// See tokenizer_json.h: reading.
#include "text/tokenizer_json.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "text/byte_alphabet.h"

namespace laplace {

namespace {

// Not base/json.h's type: that one keeps the order of keys and so looks through all earlier keys
// for each new one, which takes seconds for a vocabulary of 50,000.
using Tree = nlohmann::json;

constexpr size_t kMaxBytes = size_t{256} << 20;
constexpr int kMaxDepth = 32;
constexpr std::string_view kEndOfText = "<|endoftext|>";

// Parses with limits: size, depth, no key twice in an object, valid UTF-8, nothing behind.
Tree parse_tree(std::string_view text, const std::string& source) {
  if (text.size() > kMaxBytes) {
    fail_input(source, " is larger than the limit of ", human_bytes(double(kMaxBytes)),
               " for a tokenizer; give a smaller one");
  }
  using Event = nlohmann::detail::parse_event_t;
  std::vector<size_t> keys;  // seen in the objects that are open, outermost first
  const auto watch = [&](int depth, Event event, Tree& parsed) {
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= kMaxDepth) {
        fail_input(source, " nests deeper than ", kMaxDepth, " levels; give a tokenizer.json");
      }
      if (event == Event::object_start) keys.push_back(0);
    } else if (event == Event::key) {
      ++keys.back();
    } else if (event == Event::object_end) {
      if (parsed.size() != keys.back()) {
        fail_input(source, " has a key twice in one object (of ", keys.back(),
                   " keys); every token must be there once");
      }
      keys.pop_back();
    }
    return true;
  };
  // The parser would take one for the end of the text, whatever follows.
  if (text.find('\0') != std::string_view::npos) {
    fail_input(source, " is not valid JSON: it holds a zero byte");
  }
  try {
    return Tree::parse(text.begin(), text.end(), watch);
  } catch (const Tree::exception& error) {
    fail_input(source, " is not valid JSON: ", error.what());
  }
}

// (laplace::quoted by its full name: the plain name finds std::quoted for a std::string.)

// Access to one object of the file, with sentences for what is missing or of a wrong type.
class Object {
 public:
  // `name`: of the object inside the file, such as "model"; "" for the whole.
  Object(const Tree& tree, std::string source, std::string name)
      : tree_(tree), source_(std::move(source)), name_(std::move(name)) {
    if (!tree_.is_object()) {
      fail_input(source_, ": ", name_.empty() ? "the whole" : name_,
                 " must be a JSON object ({...}); give a tokenizer.json of byte-level BPE");
    }
  }

  // The field, or null when it is absent or null.
  const Tree* find(const std::string& field) const {
    const auto at = tree_.find(field);
    return at == tree_.end() || at->is_null() ? nullptr : &*at;
  }

  const Tree& need(const std::string& field) const {
    const Tree* const value = find(field);
    if (value == nullptr) fail_input(source_, " lacks the field ", where(field), "; add it");
    return *value;
  }

  std::string text(const std::string& field) const {
    const Tree& value = need(field);
    if (!value.is_string()) fail_input(source_, ": ", where(field), " must be a string");
    return value.get<std::string>();
  }

  // Refuses a field that is there and not `value`.
  void only(const std::string& field, const Tree& value) const {
    const Tree* const found = find(field);
    if (found != nullptr && *found != value) {
      fail_input(source_, ": ", where(field), " is ", shown(*found), ", but only ", shown(value),
                 " is known here; give a tokenizer that splits and merges as GPT-2's does");
    }
  }

  // False where it is missing.
  bool flag(const std::string& field) const {
    const Tree* const value = find(field);
    if (value != nullptr && !value->is_boolean()) {
      fail_input(source_, ": ", where(field), " must be true or false");
    }
    return value != nullptr && value->get<bool>();
  }
  std::string where(const std::string& field) const {
    return laplace::quoted(name_.empty() ? field : name_ + "." + field);
  }
  const std::string& source() const { return source_; }

 private:
  static std::string shown(const Tree& value) {
    return value.is_structured() ? value.type_name() : value.dump(-1, ' ', true);
  }

  const Tree& tree_;
  std::string source_;
  std::string name_;
};

TokenId id_of(const Tree& value, const std::string& source, const std::string& token) {
  const bool fits = value.is_number_unsigned() && value.get<uint64_t>() < uint64_t{INT32_MAX};
  if (!fits) {
    fail_input(source, ": the id of the token ", laplace::quoted(token),
               " must be a whole number from 0 on");
  }
  return value.get<TokenId>();
}

struct Special {
  TokenId id;
  SpecialForm form;
};
using Specials = std::map<std::string, Special>;

Specials read_specials(const Object& file) {
  Specials specials;
  const Tree* const list = file.find("added_tokens");
  if (list == nullptr) return specials;
  if (!list->is_array()) fail_input(file.source(), ": \"added_tokens\" must be a list");
  for (const Tree& entry : *list) {
    const Object token(entry, file.source(),
                       "added_tokens[" + std::to_string(specials.size()) + "]");
    const std::string text = token.text("content");
    const Tree* const special = token.find("special");
    if (special == nullptr || *special != Tree(true)) {
      // Hugging Face cuts these out of the text before splitting it; here nothing is cut out.
      fail_input(file.source(), ": the added token ", laplace::quoted(text),
                 " is not special, which is not supported; set \"special\" to true or remove it");
    }
    const SpecialForm form = {token.flag("lstrip"), token.flag("rstrip"),
                              token.flag("single_word")};
    const Special own = {id_of(token.need("id"), file.source(), text), form};
    if (!specials.emplace(text, own).second) {
      fail_input(file.source(), ": the added token ", laplace::quoted(text),
                 " is given twice; remove one");
    }
  }
  return specials;
}

// All tokens: those of the vocabulary, and special ones that are not in it.
TablesBuilder read_vocabulary(const Tree& vocabulary, const Specials& specials,
                              const std::string& source) {
  if (!vocabulary.is_object()) {
    fail_input(source, ": the vocabulary must be a JSON object from token to id");
  }
  size_t count = vocabulary.size();
  for (const auto& [text, special] : specials) {
    const auto at = vocabulary.find(text);
    if (at == vocabulary.end()) {
      ++count;
    } else if (id_of(*at, source, text) != special.id) {
      fail_input(source, ": the special token ", laplace::quoted(text), " has the id ", special.id,
                 " in \"added_tokens\" but another in the vocabulary; make them equal");
    }
  }
  TablesBuilder builder(source, count);
  for (const auto& [key, value] : vocabulary.items()) {
    if (specials.contains(key)) continue;
    const auto bytes = from_alphabet(key);
    if (!bytes) {
      fail_input(source, ": the token ", laplace::quoted(key),
                 " is not written in the byte-level alphabet; give a byte-level BPE tokenizer");
    }
    builder.add_piece(id_of(value, source, key), *bytes);
  }
  for (const auto& [text, own] : specials) builder.add_special(own.id, text, own.form);
  return builder;
}

void add_merge(TablesBuilder& builder, std::string_view left, std::string_view right,
               const std::string& source) {
  const auto a = from_alphabet(left);
  const auto b = from_alphabet(right);
  if (!a || !b || a->empty() || b->empty()) {
    fail_input(source, ": the merge of ", laplace::quoted(left), " and ", laplace::quoted(right),
               " is not written in the byte-level alphabet; correct or remove it");
  }
  builder.add_merge(*a, *b);
}

// "a b", in which neither part has a space.
void add_merge_line(TablesBuilder& builder, std::string_view line, const std::string& source) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) {
    fail_input(source, ": the merge ", laplace::quoted(line),
               " is not two tokens with a space between");
  }
  add_merge(builder, line.substr(0, space), line.substr(space + 1), source);
}

void read_merges(const Tree& merges, TablesBuilder& builder, const std::string& source) {
  if (!merges.is_array()) fail_input(source, ": \"model.merges\" must be a list");
  for (const Tree& merge : merges) {
    if (merge.is_string()) {
      add_merge_line(builder, merge.get_ref<const std::string&>(), source);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      add_merge(builder, merge[0].get_ref<const std::string&>(),
                merge[1].get_ref<const std::string&>(), source);
    } else {
      fail_input(source, ": every entry of \"model.merges\" must be \"a b\" or [\"a\", \"b\"]");
    }
  }
}

void check_model(const Object& model) {
  model.only("type", "BPE");
  if (const Tree* const dropout = model.find("dropout"); dropout && *dropout != Tree(0.0)) {
    fail_input(model.source(), ": \"model.dropout\" must be null; ids would be random with it");
  }
  model.only("continuing_subword_prefix", "");
  model.only("end_of_word_suffix", "");
  model.only("byte_fallback", false);
  model.only("ignore_merges", false);
}

}  // namespace

std::shared_ptr<const Tokenizer::Tables> tables_from_json(std::string_view text,
                                                          const std::string& source) {
  const Tree tree = parse_tree(text, source);
  const Object file(tree, source, "");
  if (file.find("normalizer") != nullptr) {
    fail_input(source, ": \"normalizer\" must be null; text is taken as it is here");
  }
  for (const char* const field : {"truncation", "padding"}) {
    if (file.find(field) != nullptr) {
      log_warning(source, ": ", laplace::quoted(field), " is not used; no text is cut or padded");
    }
  }
  const Object splitting(file.need("pre_tokenizer"), source, "pre_tokenizer");
  splitting.only("type", "ByteLevel");
  splitting.only("add_prefix_space", false);
  splitting.only("use_regex", true);
  if (splitting.find("add_prefix_space") == nullptr) {
    fail_input(source, " lacks the field \"pre_tokenizer.add_prefix_space\"; set it to false");
  }
  for (const char* const field : {"post_processor", "decoder"}) {
    const Tree* const part = file.find(field);
    if (part != nullptr) Object(*part, source, field).only("type", "ByteLevel");
  }
  const Object model(file.need("model"), source, "model");
  check_model(model);
  TablesBuilder builder = read_vocabulary(model.need("vocab"), read_specials(file), source);
  read_merges(model.need("merges"), builder, source);
  return builder.build();
}

std::shared_ptr<const Tokenizer::Tables> tables_from_gpt2(std::string_view encoder,
                                                          const std::string& encoder_source,
                                                          std::string_view merges,
                                                          const std::string& merges_source) {
  const Tree vocabulary = parse_tree(encoder, encoder_source);
  Specials specials;
  if (vocabulary.is_object()) {
    const auto at = vocabulary.find(kEndOfText);
    if (at != vocabulary.end()) {
      specials.emplace(kEndOfText,
                       Special{id_of(*at, encoder_source, std::string(kEndOfText)), {}});
    }
  }
  TablesBuilder builder = read_vocabulary(vocabulary, specials, encoder_source);
  if (merges.starts_with("#version")) {
    merges.remove_prefix(std::min(merges.find('\n'), merges.size()));
  }
  while (!merges.empty()) {
    const size_t end = std::min(merges.find('\n'), merges.size());
    std::string_view line = merges.substr(0, end);
    merges.remove_prefix(std::min(end + 1, merges.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) add_merge_line(builder, line, merges_source);
  }
  return builder.build();
}

}  // namespace laplace
