// See dataset.h.
#include "data/dataset.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/strings.h"
#include "base/xxh64.h"

namespace laplace {

namespace {

constexpr std::string_view kFormatName = "laplace-tokens";
constexpr int64_t kFormatVersion = 1;
constexpr int32_t kGpt2EndOfText = 50256;

Json split_to_json(const SplitInfo& split) {
  return {{"documents", split.documents},
          {"tokens", split.tokens},
          {"text_bytes", split.text_bytes},
          {"shards", split.shards}};
}

SplitInfo split_from_json(const Json& object, const std::string& source) {
  JsonFields fields(object, source);
  SplitInfo split;
  split.documents = fields.integer("documents", 0, INT64_MAX);
  split.tokens = fields.integer("tokens", 0, INT64_MAX);
  split.text_bytes = fields.integer("text_bytes", 0, INT64_MAX);
  split.shards = fields.integer("shards", 0, INT64_MAX);
  fields.finish();
  return split;
}

}  // namespace

std::string fingerprint_text(uint64_t fingerprint) {
  return strf("%016llx", static_cast<unsigned long long>(fingerprint));
}

void save_dataset_info(const Path& directory, const DatasetInfo& info) {
  const Json object = {{"format", kFormatName},
                       {"version", kFormatVersion},
                       {"tokenizer_fingerprint", info.tokenizer_fingerprint},
                       {"vocab_size", info.vocab_size},
                       {"end_of_text", info.end_of_text},
                       {"splits",
                        {{std::string(kTrainSplit), split_to_json(info.train)},
                         {std::string(kValSplit), split_to_json(info.val)}}}};
  write_file_atomic(directory / kDatasetFile, to_text(object));
}

std::optional<DatasetInfo> load_dataset_info(const Path& directory) {
  const Path path = directory / kDatasetFile;
  if (!std::filesystem::exists(path)) return std::nullopt;
  const Json object = load_json(path);
  const std::string source = path.string();
  JsonFields fields(object, source);
  if (fields.text("format") != kFormatName) {
    fail_input(source, ": the field \"format\" must be \"", kFormatName,
               "\"; prepare the data again");
  }
  fields.integer("version", kFormatVersion, kFormatVersion);
  DatasetInfo info;
  info.tokenizer_fingerprint = fields.text("tokenizer_fingerprint");
  info.vocab_size = fields.integer("vocab_size", 1, INT32_MAX);
  info.end_of_text = fields.integer("end_of_text", 0, info.vocab_size - 1);
  JsonFields splits(fields.any("splits"), source + ", \"splits\"");
  info.train = split_from_json(splits.any(std::string(kTrainSplit)), source + ", \"train\"");
  info.val = split_from_json(splits.any(std::string(kValSplit)), source + ", \"val\"");
  splits.finish();
  fields.finish();
  return info;
}

bool has_split(const Path& directory, std::string_view split) {
  if (!list_shards(directory, split).empty()) return true;
  const auto info = load_dataset_info(directory);
  return info && info->split(split).tokens > 0;
}

TokenStream::TokenStream(const Path& directory, std::string_view split, int64_t vocab_size)
    : directory_(directory), split_(split), vocab_size_(vocab_size), end_of_text_(kGpt2EndOfText) {
  const std::vector<Path> paths = list_shards(directory, split);
  if (paths.empty()) {
    fail_input(directory.string(), " has no ", split, " shards (", shard_name(split, 0),
               "); make them with `laplace data prepare`",
               split == kValSplit ? " and a --val-fraction above 0" : "", ", or restore them");
  }
  info_ = load_dataset_info(directory);
  if (info_) {
    end_of_text_ = static_cast<int32_t>(info_->end_of_text);
    if (info_->vocab_size > vocab_size) {
      fail_input((directory / kDatasetFile).string(), " is of a tokenizer with ", info_->vocab_size,
                 " tokens, more than the model's vocab_size ", vocab_size,
                 "; take a config with at least as many, or prepare the data with a smaller one");
    }
  } else {
    if (vocab_size <= kGpt2EndOfText) {
      fail_input(directory.string(), " has no ", kDatasetFile, ", so its tokens would be GPT-2's, ",
                 "whose <|endoftext|> ", kGpt2EndOfText, " lies outside the vocab_size ",
                 vocab_size, "; restore the file, or prepare the data again");
    }
    log_warning(directory.string(), " has no ", kDatasetFile, "; taking its tokens as GPT-2's");
  }
  starts_.push_back(0);
  for (const Path& path : paths) {
    shards_.emplace_back(path);
    starts_.push_back(starts_.back() + shards_.back().tokens());
  }
  if (info_ && tokens() != info_->split(split).tokens) {
    fail_input((directory / kDatasetFile).string(), " counts ", info_->split(split).tokens, " ",
               split, " tokens, but the shards hold ", tokens(),
               "; restore the missing shards or prepare the data again");
  }
}

std::optional<Tokenizer> TokenStream::tokenizer() const {
  const Path path = directory_ / "tokenizer.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  Tokenizer tokenizer = Tokenizer::open(directory_);
  const std::string fingerprint = fingerprint_text(tokenizer.fingerprint());
  if (info_ && fingerprint != info_->tokenizer_fingerprint) {
    fail_input(path.string(), " is not the tokenizer that made the shards (its fingerprint is ",
               fingerprint, ", not ", info_->tokenizer_fingerprint,
               "); restore it, or prepare the data again");
  }
  if (tokenizer.vocab_size() > vocab_size_) {
    fail_input(path.string(), " has ", tokenizer.vocab_size(),
               " tokens, more than the model's vocab_size ", vocab_size_,
               "; take a config with at least as many");
  }
  return tokenizer;
}

std::string TokenStream::fingerprint() const {
  constexpr int64_t kSample = 4096;
  uint64_t hash = 0;
  std::vector<int32_t> ids;
  for (const ShardReader& shard : shards_) {
    const int64_t count = std::min(shard.tokens(), kSample);
    ids.assign(1, int32_t(shard.tokens() % INT32_MAX));
    for (const int64_t part : {0, 1, 2}) {
      const size_t end = ids.size();
      ids.resize(end + size_t(count));
      shard.read((shard.tokens() - count) / 2 * part, std::span(ids).subspan(end));
    }
    hash = xxh64(std::as_bytes(std::span(ids)), hash);
  }
  return strf("%016llx", static_cast<unsigned long long>(hash));
}

void TokenStream::read(int64_t begin, std::span<int32_t> out) const {
  if (begin < 0 || begin > tokens() || static_cast<int64_t>(out.size()) > tokens() - begin) {
    fail("tokens from ", begin, " on lie outside ", name(), ", which has ", tokens());
  }
  auto shard = std::ranges::upper_bound(starts_, begin) - starts_.begin() - 1;
  while (!out.empty()) {
    const ShardReader& reader = shards_[static_cast<size_t>(shard)];
    const int64_t offset = begin - starts_[static_cast<size_t>(shard)];
    const auto count = std::min(out.size(), static_cast<size_t>(reader.tokens() - offset));
    const auto part = out.first(count);
    reader.read(offset, part);
    check(reader, offset, part);
    begin += static_cast<int64_t>(count);
    out = out.subspan(count);
    ++shard;
  }
}

void TokenStream::check(const ShardReader& shard, int64_t begin,
                        std::span<const int32_t> ids) const {
  // As unsigned, so that a uint32 beyond int32 counts as large. The loop of maxima vectorizes.
  uint32_t largest = 0;
  for (const int32_t id : ids) largest = std::max(largest, static_cast<uint32_t>(id));
  if (int64_t{largest} < vocab_size_) return;
  const auto bad = std::ranges::find(ids, static_cast<int32_t>(largest));
  fail_input(shard.path().string(), " holds the token ", largest, " at position ",
             begin + (bad - ids.begin()), ", but the vocabulary ends before ", vocab_size_,
             "; use a model with a larger vocab_size, or prepare the data with its tokenizer");
}

}  // namespace laplace
