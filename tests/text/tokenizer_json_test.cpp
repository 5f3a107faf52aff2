// tokenizer.json and GPT-2's files: round trips, what others write, and refusals.
#include <gmock/gmock.h>

#include <functional>

#include "base/error.h"
#include "base/json.h"
#include "base/random.h"
#include "text/text_samples.h"
#include "text/tokenizer.h"

namespace laplace {
namespace {

using testing::HasSubstr;
using testing_text::gpt2;
using testing_text::mixed_text;
using testing_text::small_tokenizer;
using testing_text::TemporaryDirectory;

Json small_json() {
  static const std::string text = small_tokenizer(300).to_json();
  return parse_json(text, "test");
}

// The sentence with which `text` is refused, which must be bad input that names the file.
std::string refusal(const std::string& text) {
  try {
    Tokenizer::parse_json(text, "some/tokenizer.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    EXPECT_THAT(error.what(), HasSubstr("some/tokenizer.json"));
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text.substr(0, 200);
  return "";
}

std::string refusal_of(const std::function<void(Json&)>& change) {
  Json tree = small_json();
  change(tree);
  return refusal(to_text(tree));
}

TEST(TokenizerJson, RoundTrips) {
  const std::vector<std::string> specials = {"<|endoftext|>", "<|\u00E9t\u00E9 \"\\|>",
                                             "two words"};
  const Tokenizer trained = small_tokenizer();
  std::vector<std::pair<TokenId, TokenId>> merges = {{39, 40}, {256, 220}};
  for (const Tokenizer& tokenizer : {trained, Tokenizer::from_merges(merges, specials)}) {
    const TemporaryDirectory directory;
    tokenizer.save(directory.path() / "new");
    for (const Path& path : {directory.path() / "new", directory.path() / "new/tokenizer.json"}) {
      const Tokenizer opened = Tokenizer::open(path);
      EXPECT_EQ(opened.fingerprint(), tokenizer.fingerprint());
      EXPECT_EQ(opened.vocab_size(), tokenizer.vocab_size());
      EXPECT_EQ(opened.end_of_text(), tokenizer.end_of_text());
      EXPECT_EQ(opened.to_json(), tokenizer.to_json());
      const std::string text = mixed_text(9, 5000);
      EXPECT_EQ(opened.encode(text), tokenizer.encode(text));
    }
  }
}

TEST(TokenizerJson, ReadsMergesAsPairs) {
  Json tree = small_json();
  for (Json& merge : tree["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ');
    merge = {text.substr(0, space), text.substr(space + 1)};
  }
  EXPECT_EQ(Tokenizer::parse_json(to_text(tree), "pairs").fingerprint(),
            small_tokenizer(300).fingerprint());
}

TEST(TokenizerJson, ReadsWhatOlderFilesLack) {
  Json tree = small_json();
  tree["model"].erase("type");
  tree["model"].erase("byte_fallback");
  tree["model"].erase("ignore_merges");
  tree["model"]["unk_token"] = "";
  tree["model"]["end_of_word_suffix"] = "";
  tree["pre_tokenizer"].erase("use_regex");
  tree["post_processor"] = {{"type", "ByteLevel"}, {"trim_offsets", false}};
  tree.erase("padding");
  EXPECT_EQ(Tokenizer::parse_json(to_text(tree), "older").fingerprint(),
            small_tokenizer(300).fingerprint());
}

TEST(TokenizerJson, KeepsIdsInAnyOrder) {
  Json tree = small_json();  // the special token first, as Hugging Face's trainer puts it
  for (auto& [token, id] : tree["model"]["vocab"].items()) {
    id = token == "<|endoftext|>" ? 0 : id.get<int>() + 1;
  }
  tree["added_tokens"][0]["id"] = 0;
  const Tokenizer moved = Tokenizer::parse_json(to_text(tree), "moved");
  EXPECT_EQ(moved.end_of_text(), 0);
  const std::string text = mixed_text(2, 5000);
  auto ids = small_tokenizer(300).encode(text);
  for (TokenId& id : ids) ++id;
  EXPECT_EQ(moved.encode(text), ids);
}

// As RoBERTa's <mask>. We do not cut special tokens out of a text, but who reads what we write may.
TEST(TokenizerJson, KeepsHowSpecialTokensAreCut) {
  Json tree = small_json();
  tree["added_tokens"][0]["lstrip"] = true;
  tree["added_tokens"][0]["single_word"] = true;
  const Tokenizer opened = Tokenizer::parse_json(to_text(tree), "mask");
  const Json written = parse_json(opened.to_json(), "written")["added_tokens"][0];
  EXPECT_EQ(written["lstrip"], true);
  EXPECT_EQ(written["single_word"], true);
  EXPECT_EQ(written["rstrip"], false);
  EXPECT_EQ(opened.fingerprint(), small_tokenizer(300).fingerprint());
  EXPECT_THAT(refusal_of([](Json& t) { t["added_tokens"][0]["lstrip"] = 1; }), HasSubstr("lstrip"));
}

TEST(TokenizerJson, SavesGpt2) {
  const auto tokenizer = gpt2();
  if (!tokenizer) return;
  const TemporaryDirectory directory;
  tokenizer->save(directory.path());
  const Tokenizer opened = Tokenizer::open(directory.path());
  EXPECT_EQ(opened.fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(opened.end_of_text(), 50256);
}

TEST(TokenizerJson, RefusesOtherKinds) {
  EXPECT_THAT(refusal_of([](Json& t) { t["model"]["type"] = "Unigram"; }), HasSubstr("model.type"));
  EXPECT_THAT(refusal_of([](Json& t) {
                t["normalizer"] = {{"type", "NFC"}};
              }),
              HasSubstr("normalizer"));
  EXPECT_THAT(refusal_of([](Json& t) { t["pre_tokenizer"]["type"] = "Whitespace"; }),
              HasSubstr("pre_tokenizer.type"));
  EXPECT_THAT(refusal_of([](Json& t) { t["pre_tokenizer"] = nullptr; }),
              HasSubstr("pre_tokenizer"));
  EXPECT_THAT(refusal_of([](Json& t) { t["pre_tokenizer"]["add_prefix_space"] = true; }),
              HasSubstr("add_prefix_space"));
  EXPECT_THAT(refusal_of([](Json& t) { t["pre_tokenizer"]["use_regex"] = false; }),
              HasSubstr("use_regex"));
  EXPECT_THAT(refusal_of([](Json& t) { t["decoder"]["type"] = "WordPiece"; }),
              HasSubstr("decoder.type"));
  EXPECT_THAT(refusal_of([](Json& t) {
                t["post_processor"] = {{"type", "TemplateProcessing"}};
              }),
              HasSubstr("post_processor.type"));
  EXPECT_THAT(refusal_of([](Json& t) { t["model"]["dropout"] = 0.1; }), HasSubstr("dropout"));
  EXPECT_THAT(refusal_of([](Json& t) { t["model"]["byte_fallback"] = true; }),
              HasSubstr("byte_fallback"));
  EXPECT_THAT(refusal_of([](Json& t) { t["model"]["ignore_merges"] = true; }),
              HasSubstr("ignore_merges"));
  EXPECT_THAT(refusal_of([](Json& t) { t["model"]["end_of_word_suffix"] = "</w>"; }),
              HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(refusal_of([](Json& t) { t["added_tokens"][0]["special"] = false; }),
              HasSubstr("special"));
}

TEST(TokenizerJson, RefusesVocabulariesThatDoNotFit) {
  const auto vocab = [](Json& t) -> Json& { return t["model"]["vocab"]; };
  EXPECT_THAT(refusal_of([&](Json& t) { vocab(t)["a"] = 70; }), HasSubstr("another token"));
  EXPECT_THAT(refusal_of([&](Json& t) { vocab(t)["a"] = 70000; }), HasSubstr("without gaps"));
  EXPECT_THAT(refusal_of([&](Json& t) { vocab(t)["a"] = -1; }), HasSubstr("whole number"));
  EXPECT_THAT(refusal_of([&](Json& t) { vocab(t)["a"] = 1e300; }), HasSubstr("whole number"));
  EXPECT_THAT(refusal_of([&](Json& t) { vocab(t)["a"] = 4294967296; }), HasSubstr("whole number"));
  EXPECT_THAT(refusal_of([&](Json& t) { vocab(t)["a"] = "1"; }), HasSubstr("whole number"));
  EXPECT_THAT(refusal_of([&](Json& t) { vocab(t).erase("a"); }), HasSubstr("without gaps"));
  EXPECT_THAT(refusal_of([&](Json& t) {
                const int id = vocab(t)["\u0100"];
                vocab(t).erase("\u0100");
                vocab(t)["qqq"] = id;
              }),
              HasSubstr("no token for the byte 0"));
  EXPECT_THAT(refusal_of([&](Json& t) { vocab(t)["a b"] = 300; }), HasSubstr("alphabet"));
  EXPECT_THAT(refusal_of([&](Json& t) { vocab(t)[""] = 300; }), HasSubstr("empty"));
  EXPECT_THAT(refusal_of([&](Json& t) { vocab(t) = Json::array(); }), HasSubstr("vocab"));
  EXPECT_THAT(refusal_of([&](Json& t) { t["model"].erase("vocab"); }), HasSubstr("model.vocab"));
  EXPECT_THAT(refusal_of([](Json& t) { t.erase("model"); }), HasSubstr("model"));
  EXPECT_THAT(refusal_of([](Json& t) { t["model"] = 3; }), HasSubstr("model"));
  EXPECT_THAT(refusal_of([](Json& t) { t["added_tokens"][0]["id"] = 5; }),
              HasSubstr("added_tokens"));
  EXPECT_THAT(refusal_of([](Json& t) { t["added_tokens"].push_back(t["added_tokens"][0]); }),
              HasSubstr("twice"));
  EXPECT_THAT(refusal_of([](Json& t) { t["added_tokens"] = "x"; }), HasSubstr("added_tokens"));
  EXPECT_THAT(refusal_of([](Json& t) { t["added_tokens"][0].erase("content"); }),
              HasSubstr("content"));
}

TEST(TokenizerJson, RefusesMergesThatDoNotFit) {
  const auto first = [](Json& t) -> Json& { return t["model"]["merges"][0]; };
  EXPECT_THAT(refusal_of([&](Json& t) { first(t) = "zqx j"; }), HasSubstr("vocabulary lacks"));
  EXPECT_THAT(refusal_of([&](Json& t) { first(t) = "z q"; }), HasSubstr("vocabulary lacks"));
  EXPECT_THAT(refusal_of([&](Json& t) { first(t) = "zq"; }), HasSubstr("space"));
  EXPECT_THAT(refusal_of([&](Json& t) { first(t) = " a"; }), HasSubstr("merge"));
  EXPECT_THAT(refusal_of([&](Json& t) { first(t) = "a b c"; }), HasSubstr("alphabet"));
  EXPECT_THAT(refusal_of([&](Json& t) { first(t) = 3; }), HasSubstr("model.merges"));
  EXPECT_THAT(refusal_of([&](Json& t) { first(t) = {"a", "b", "c"}; }), HasSubstr("model.merges"));
  EXPECT_THAT(refusal_of([&](Json& t) { first(t) = {"a", 1}; }), HasSubstr("model.merges"));
  EXPECT_THAT(refusal_of([&](Json& t) { first(t) = t["model"]["merges"][1]; }), HasSubstr("twice"));
  EXPECT_THAT(refusal_of([](Json& t) { t["model"]["merges"] = 1; }), HasSubstr("model.merges"));
}

TEST(TokenizerJson, RefusesWhatIsNoSuchFile) {
  const std::string whole = to_text(small_json());
  for (const size_t size : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 3}) {
    EXPECT_THAT(refusal(whole.substr(0, size)), HasSubstr("JSON"));
  }
  refusal("[]");
  refusal("null");
  refusal("{}");
  refusal("{\"a\": 1, \"a\": 2}");
  refusal("\xFF\xFE");
  EXPECT_THAT(refusal(whole + std::string("\0x", 2)), HasSubstr("zero byte"));
  refusal(std::string(100000, '['));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  EXPECT_THAT(refusal(objects), HasSubstr("deeper"));
}

TEST(TokenizerJson, SurvivesDamage) {
  const std::string whole = to_text(small_json());
  for (uint64_t i = 0; i < 300; ++i) {
    std::string text = whole;
    for (uint64_t j = 0; j < 1 + i % 3; ++j) {
      text[random_bits(i, 1, j) % text.size()] = char(random_bits(i, 2, j));
    }
    try {
      Tokenizer::parse_json(text, "damaged");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    }
  }
}

// GPT-2's two files of a small tokenizer.
void write_gpt2_files(const Path& directory, const std::string& encoder,
                      const std::string& merges) {
  const Json tree = small_json();
  write_file_atomic(directory / encoder, to_text(tree["model"]["vocab"]));
  std::string lines = "#version: 0.2\n";
  for (const Json& merge : tree["model"]["merges"]) lines += merge.get<std::string>() + "\n";
  write_file_atomic(directory / merges, lines);
}

TEST(TokenizerFiles, OpensGpt2Files) {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory.path() / "a");
  std::filesystem::create_directory(directory.path() / "b");
  write_gpt2_files(directory.path() / "a", "encoder.json", "vocab.bpe");
  write_gpt2_files(directory.path() / "b", "vocab.json", "merges.txt");
  const uint64_t print = small_tokenizer(300).fingerprint();
  EXPECT_EQ(Tokenizer::open(directory.path() / "a").fingerprint(), print);
  EXPECT_EQ(Tokenizer::open(directory.path() / "a/vocab.bpe").fingerprint(), print);
  EXPECT_EQ(Tokenizer::open(directory.path() / "a/encoder.json").fingerprint(), print);
  EXPECT_EQ(Tokenizer::open(directory.path() / "b").fingerprint(), print);
  write_file_atomic(directory.path() / "a/vocab.bpe", "#version: 0.2\nzz\n");
  EXPECT_THROW(Tokenizer::open(directory.path() / "a"), Error);
}

TEST(TokenizerFiles, RefusesWhatIsNotThere) {
  const TemporaryDirectory directory;
  EXPECT_THROW(Tokenizer::open(directory.path()), Error);
  EXPECT_THROW(Tokenizer::open(directory.path() / "none"), Error);
  EXPECT_THROW(Tokenizer::open(directory.path() / "vocab.bpe"), Error);
}

}  // namespace
}  // namespace laplace
