// See text_samples.h.
#include "text/text_samples.h"

#include <array>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "base/random.h"
#include "text/bpe_train.h"
#include "text/splitter.h"
#include "text/tables.h"

namespace laplace::testing_text {

std::optional<Tokenizer> gpt2() {
  std::vector<Path> places;
  if (const char* const place = std::getenv("LAPLACE_GPT2_VOCAB")) places.emplace_back(place);
  places.push_back(Path(LAPLACE_SOURCE_DIR) / ".." / "shared" / "data" / "gpt2");
  for (const Path& place : places) {
    if (std::filesystem::exists(place)) return Tokenizer::open(place);
  }
  std::fprintf(stderr,
               "\n*** NOT TESTED: GPT-2's vocab.bpe and encoder.json are not here. Set "
               "LAPLACE_GPT2_VOCAB to their directory to test against them. ***\n\n");
  return std::nullopt;
}

std::string mixed_text(uint64_t seed, size_t bytes) {
  static const std::array<std::string_view, 40> kParts = {
      " the",    " of",     " state", "The",         "n't",    "'s",     " it's",    "ing",
      " tokens", ". ",      ", ",     "\n",          "\n\n",   "    ",   "\t",       " 2024",
      "3.14",    "0x1F",    "{\n  ",  "}",           "();",    " == ",   "->",       "_name",
      "é",       " über",   "ß",      " миру",       "中文",   "日本語", "한국",     " नमस्ते",
      "عربي",    "e\u0301", "😀",      "👩‍🚀", "\u00A0", "\xFF",   "\xE4\xB8", "aaaa"};
  std::string text;
  for (uint64_t i = 0; text.size() < bytes; ++i) {
    // Zipf-like: the first parts are the most common.
    const double u = random_uniform(seed, 7, i);
    text += kParts[size_t(u * u * double(kParts.size()))];
  }
  return text;
}

Tokenizer small_tokenizer(TokenId vocab_size) {
  BpeTrainer trainer(1);
  trainer.add(mixed_text(1, 200000));
  BpeOptions options;
  options.vocab_size = vocab_size;
  return trainer.train(options);
}

std::vector<TokenId> encode_slowly(const Tokenizer& tokenizer, std::string_view text) {
  const Tokenizer::Tables& tables = tokenizer.tables();
  std::vector<TokenId> all;
  Splitter splitter(text);
  for (std::string_view piece; splitter.next(piece);) {
    std::vector<TokenId> ids;
    for (const char byte : piece) ids.push_back(tables.byte_ids[uint8_t(byte)]);
    while (true) {
      Merge best;
      size_t place = 0;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        const Merge merge = tables.table.find(ids[i], ids[i + 1]);
        if (merge.rank < best.rank) {
          best = merge;
          place = i;
        }
      }
      if (best.rank == Merge::kNone) break;
      ids[place] = best.id;
      ids.erase(ids.begin() + std::ptrdiff_t(place) + 1);
    }
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "laplace-text-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) fail_errno("cannot make a temporary directory");
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace laplace::testing_text
