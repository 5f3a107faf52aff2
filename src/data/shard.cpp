// See shard.h.
#include "data/shard.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace laplace {

namespace {

static_assert(std::endian::native == std::endian::little, "shards are mapped as little-endian");

struct Format {
  int32_t magic;
  int32_t version;
  int token_bytes;
};
constexpr Format kFormats[] = {{20240520, 1, 2}, {20240801, 7, 4}};

constexpr std::string_view kRemedy = "; make it again with `laplace data prepare`";

const Format& format_of(int token_bytes) { return kFormats[token_bytes == 2 ? 0 : 1]; }

std::string header_bytes(int token_bytes, int64_t tokens) {
  const Format& format = format_of(token_bytes);
  const int32_t fields[3] = {format.magic, format.version, static_cast<int32_t>(tokens)};
  std::string header(kShardHeaderBytes, '\0');
  std::memcpy(header.data(), fields, sizeof fields);
  return header;
}

// The number in "<split>_<digits>.bin", -1 when `name` is not such a name.
int64_t shard_number(std::string_view name, std::string_view split) {
  constexpr std::string_view kEnding = ".bin";
  if (!name.starts_with(split) || !name.ends_with(kEnding)) return -1;
  if (name.size() < split.size() + 1 + 6 + kEnding.size()) return -1;
  if (name[split.size()] != '_') return -1;
  const auto digits =
      name.substr(split.size() + 1, name.size() - split.size() - 1 - kEnding.size());
  if (digits.size() > 12) return -1;
  int64_t number = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return -1;
    number = number * 10 + (c - '0');
  }
  return number;
}

}  // namespace

ShardHeader parse_shard_header(std::span<const std::byte> bytes, uint64_t file_bytes,
                               const std::string& source) {
  if (file_bytes == 0) fail_input(source, " is empty, not a token shard", kRemedy);
  if (bytes.size() < kShardHeaderBytes || file_bytes < kShardHeaderBytes) {
    fail_input(source, " has ", file_bytes, " bytes, less than a token shard's header of ",
               kShardHeaderBytes, kRemedy);
  }
  int32_t fields[3];
  std::memcpy(fields, bytes.data(), sizeof fields);
  const auto* const format = std::ranges::find(kFormats, fields[0], &Format::magic);
  if (format == std::end(kFormats)) {
    fail_input(source, " is not a token shard: its magic is ", fields[0], ", not ",
               kFormats[0].magic, " or ", kFormats[1].magic, kRemedy);
  }
  if (fields[1] != format->version) {
    fail_input(source, " has version ", fields[1], ", but shards with magic ", format->magic,
               " have version ", format->version, kRemedy);
  }
  const int64_t tokens = fields[2];
  if (tokens <= 0) fail_input(source, " says that it has ", tokens, " tokens", kRemedy);
  const uint64_t expected = kShardHeaderBytes + uint64_t(tokens) * uint64_t(format->token_bytes);
  if (file_bytes != expected) {
    fail_input(source, " has ", file_bytes, " bytes, but its header promises ", tokens,
               " tokens in ", expected, " bytes: it was cut or damaged", kRemedy);
  }
  return {tokens, format->token_bytes};
}

std::string shard_name(std::string_view split, int64_t number) {
  return cat(split, strf("_%06lld.bin", static_cast<long long>(number)));
}

std::vector<Path> list_shards(const Path& directory, std::string_view split) {
  std::error_code code;
  std::filesystem::directory_iterator entries(directory, code);
  if (code) {
    fail_input("cannot open the data directory ", directory.string(), ": ", code.message(),
               "; make one with `laplace data prepare`");
  }
  std::vector<std::pair<int64_t, Path>> found;
  for (const auto& entry : entries) {
    const int64_t number = shard_number(entry.path().filename().string(), split);
    if (number >= 0) found.emplace_back(number, entry.path());
  }
  std::ranges::sort(found);
  std::vector<Path> paths;
  for (const auto& [number, path] : found) {
    const auto expected = static_cast<int64_t>(paths.size());
    if (number != expected) {
      fail_input(directory.string(), " lacks the shard ", shard_name(split, expected), " before ",
                 path.filename().string(), "; restore it, or prepare the data again");
    }
    paths.push_back(path);
  }
  return paths;
}

ShardReader::ShardReader(const Path& path)
    : file_(path), header_(parse_shard_header(file_.bytes(), file_.size(), path.string())) {}

void ShardReader::read(int64_t begin, std::span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  if (begin < 0 || begin > header_.tokens || count > header_.tokens - begin) {
    fail("tokens ", begin, " to ", begin + count, " lie outside ", path().string());
  }
  if (out.empty()) return;
  const std::byte* const from =
      file_.bytes().data() + kShardHeaderBytes + begin * header_.token_bytes;
  if (header_.token_bytes == 4) {
    std::memcpy(out.data(), from, out.size_bytes());
    return;
  }
  // The map starts at a page and the header has an even size, so uint16 reads are aligned.
  const auto* const ids = reinterpret_cast<const uint16_t*>(from);
  std::copy_n(ids, out.size(), out.begin());
}

ShardWriter::ShardWriter(const Path& path, int token_bytes)
    : file_(path), path_(path), token_bytes_(token_bytes) {
  file_.write(std::string(kShardHeaderBytes, '\0'));  // a killed run must not leave a valid header
}

void ShardWriter::append(std::span<const int32_t> ids) {
  if (static_cast<int64_t>(ids.size()) > kMaxShardTokens - tokens_) {
    fail(path_.string(), " would hold more than ", kMaxShardTokens, " tokens, a shard's limit");
  }
  tokens_ += static_cast<int64_t>(ids.size());
  if (token_bytes_ == 4) {
    file_.write(std::as_bytes(ids));
    return;
  }
  std::vector<uint16_t> narrow(std::min<size_t>(ids.size(), size_t{1} << 16));
  while (!ids.empty()) {
    const auto part = ids.first(std::min(ids.size(), narrow.size()));
    for (size_t i = 0; i < part.size(); ++i) {
      if (part[i] < 0 || part[i] >= kMaxVocab16) {
        fail("token ", part[i], " does not fit into 16 bits in ", path_.string());
      }
      narrow[i] = static_cast<uint16_t>(part[i]);
    }
    file_.write(std::as_bytes(std::span(narrow).first(part.size())));
    ids = ids.subspan(part.size());
  }
}

void ShardWriter::commit() {
  file_.write_at(0, header_bytes(token_bytes_, tokens_));
  file_.commit();
}

SplitWriter::SplitWriter(Path directory, std::string split, int64_t vocab_size,
                         int64_t shard_tokens)
    : directory_(std::move(directory)),
      split_(std::move(split)),
      token_bytes_(shard_token_bytes(vocab_size)),
      shard_tokens_(shard_tokens) {
  if (shard_tokens < 1 || shard_tokens > kMaxShardTokens) {
    fail_input("--shard-tokens is ", shard_tokens, ", but must be from 1 to ", kMaxShardTokens,
               ", because a shard counts its tokens in 31 bits");
  }
}

SplitWriter::~SplitWriter() = default;

void SplitWriter::append(std::span<const int32_t> ids) {
  while (!ids.empty()) {
    if (!shard_) {
      shard_ =
          std::make_unique<ShardWriter>(directory_ / shard_name(split_, shards_++), token_bytes_);
    }
    const auto room = static_cast<size_t>(shard_tokens_ - shard_->tokens());
    const auto part = ids.first(std::min(ids.size(), room));
    shard_->append(part);
    tokens_ += static_cast<int64_t>(part.size());
    ids = ids.subspan(part.size());
    if (shard_->tokens() == shard_tokens_) finish();
  }
}

void SplitWriter::finish() {
  if (!shard_) return;
  shard_->commit();
  shard_.reset();
}

}  // namespace laplace
