// See session_record.h.
#include "serve/sessions/session_record.h"

#include <sodium.h>

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <span>

#include "base/error.h"
#include "base/xxh64.h"

namespace laplace {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "LPLSESS1";
constexpr size_t kFixedBytes = kMagic.size() + 8;  // before the JSON
constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

struct StoredCount {
  int32_t id;
  uint32_t in_prompt;
  uint32_t in_output;
};
static_assert(sizeof(StoredCount) == 12);

struct Header {
  SessionRecord record;
  std::string fingerprint;
  int64_t slot_floats = 0, logits = 0, counts = 0;
};

template <class T>
void append(std::string& out, const std::vector<T>& values) {
  out.append(reinterpret_cast<const char*>(values.data()), sizeof(T) * values.size());
}

template <class T>
std::vector<T> take(std::string_view& bytes, int64_t count) {
  std::vector<T> out(static_cast<size_t>(count));
  if (count > 0) std::memcpy(out.data(), bytes.data(), sizeof(T) * out.size());
  bytes.remove_prefix(sizeof(T) * out.size());
  return out;
}

uint64_t hash_of(std::string_view bytes) { return xxh64(std::as_bytes(std::span(bytes))); }

// The JSON's length, checked; `beginning` holds all of it.
std::string_view header_text(std::string_view beginning, const std::string& source) {
  uint64_t length = 0;
  if (beginning.size() < kFixedBytes || !beginning.starts_with(kMagic)) {
    fail_input(source, " is not a saved session; delete it");
  }
  std::memcpy(&length, beginning.data() + kMagic.size(), sizeof length);
  if (length > kMaxSessionHeader || length > beginning.size() - kFixedBytes) {
    fail_input(source, " is damaged (its header does not fit into it); delete the session");
  }
  return beginning.substr(kFixedBytes, length);
}

Header read_header(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source, {kMaxSessionHeader, 8});
  JsonFields fields(json, source);
  Header header;
  SessionRecord& record = header.record;
  record.info.name = fields.text("name");
  record.info.version = fields.text("version");
  record.info.position = fields.integer("position", 1, kLargest);
  record.info.turns = fields.integer("turns", 0, kLargest);
  record.info.created = fields.integer("created", 0, kLargest);
  record.info.updated = fields.integer("updated", 0, kLargest);
  record.form = fields.text("form");
  record.pending = fields.text("pending");
  record.messages = fields.integer("messages", 0, kLargest);
  record.chain = fields.text("chain");
  header.fingerprint = fields.text("model");
  header.slot_floats = fields.integer("slot_floats", 0, kLargest);
  header.logits = fields.integer("logits", 0, kLargest);
  header.counts = fields.integer("counts", 0, kLargest);
  fields.finish();
  return header;
}

std::vector<TokenCount> counts_of(const std::vector<StoredCount>& stored, int64_t vocab_size,
                                  const std::string& source) {
  std::vector<TokenCount> counts;
  std::set<int32_t> seen;
  counts.reserve(stored.size());
  for (const StoredCount& count : stored) {
    if (count.id < 0 || count.id >= vocab_size || count.in_prompt > 1 ||
        !seen.insert(count.id).second) {
      fail_input(source, " counts the token ", count.id, ", which no state of this model can; ",
                 "it is damaged: delete the session");
    }
    counts.push_back({count.id, count.in_prompt == 1, count.in_output});
  }
  return counts;
}

}  // namespace

Json SessionInfo::to_json() const {
  return {{"id", name},     {"object", "session"},  {"created", created}, {"updated", updated},
          {"turns", turns}, {"position", position}, {"bytes", bytes}};
}

std::string encode_session(const SessionRecord& record, const StateShape& shape) {
  const SequenceSnapshot& state = *record.snapshot;
  const std::string json = to_line({{"name", record.info.name},
                                    {"version", record.info.version},
                                    {"position", state.position},
                                    {"turns", record.info.turns},
                                    {"created", record.info.created},
                                    {"updated", record.info.updated},
                                    {"form", record.form},
                                    {"pending", record.pending},
                                    {"messages", record.messages},
                                    {"chain", record.chain},
                                    {"model", shape.fingerprint},
                                    {"slot_floats", state.slot.size()},
                                    {"logits", state.logits.size()},
                                    {"counts", state.counts.size()}});
  if (json.size() > kMaxSessionHeader) fail("the header of a session is too long to be saved");
  const uint64_t length = json.size();
  std::string out;
  out.reserve(kFixedBytes + json.size() + size_t(state.bytes()) + 64);
  out += kMagic;
  out.append(reinterpret_cast<const char*>(&length), sizeof length);
  out += json;
  append(out, state.slot);
  append(out, state.logits);
  std::vector<StoredCount> counts;
  counts.reserve(state.counts.size());
  for (const TokenCount& count : state.counts) {
    counts.push_back({count.id, count.in_prompt ? 1u : 0u, count.in_output});
  }
  append(out, counts);
  const uint64_t hash = hash_of(out);
  out.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  return out;
}

SessionRecord decode_session(std::string_view bytes, const StateShape& shape,
                             const std::string& name, const std::string& source) {
  const std::string_view text = header_text(bytes, source);
  Header header = read_header(text, source);
  if (header.fingerprint != shape.fingerprint) {
    fail_input(source, " is the state of another model (fingerprint ", quoted(header.fingerprint),
               ", this model's is ", shape.fingerprint,
               "); serve that model, or delete the session");
  }
  if (header.record.info.name != name) {
    fail_input(source, " was saved under the name ", quoted(header.record.info.name),
               "; delete the session");
  }
  std::string_view rest = bytes.substr(kFixedBytes + text.size());
  const uint64_t expected_floats = uint64_t(shape.slot_floats) + uint64_t(shape.vocab_size);
  if (header.slot_floats != shape.slot_floats || header.logits != shape.vocab_size ||
      header.counts > shape.vocab_size ||
      rest.size() != 4 * expected_floats + 12 * uint64_t(header.counts) + 8) {
    fail_input(source, " is damaged (its size is not that of a state); delete the session");
  }
  uint64_t hash = 0;
  std::memcpy(&hash, bytes.data() + bytes.size() - sizeof hash, sizeof hash);
  if (hash != hash_of(bytes.substr(0, bytes.size() - sizeof hash))) {
    fail_input(source, " is damaged (its checksum does not fit); delete the session");
  }
  auto state = std::make_shared<SequenceSnapshot>();
  state->position = header.record.info.position;
  state->slot = take<float>(rest, header.slot_floats);
  state->logits = take<float>(rest, header.logits);
  state->counts = counts_of(take<StoredCount>(rest, header.counts), shape.vocab_size, source);
  header.record.info.bytes = int64_t(bytes.size());
  header.record.snapshot = std::move(state);
  return std::move(header.record);
}

SessionInfo peek_session(std::string_view beginning, int64_t size, const std::string& source) {
  Header header = read_header(header_text(beginning, source), source);
  header.record.info.bytes = size;
  return std::move(header.record.info);
}

std::string message_chain(const std::string& chain, std::string_view message) {
  std::array<unsigned char, 16> hash{};
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, hash.size());
  const uint64_t length = chain.size();
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&length), sizeof length);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(chain.data()),
                            chain.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(message.data()),
                            message.size());
  crypto_generichash_final(&state, hash.data(), hash.size());
  std::array<char, 33> hex{};
  sodium_bin2hex(hex.data(), hex.size(), hash.data(), hash.size());
  return hex.data();
}

}  // namespace laplace
