// See state_file.h.
#include "serve/engine/state_file.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/safetensors_header.h"
#include "serve/engine/tensor_hash.h"

namespace laplace {

namespace {

constexpr const char* kFormat = "laplace-state-1";
constexpr size_t kMaxNameLength = 64;

// A tensor of the file: where its numbers lie.
struct Part {
  std::string name;
  TensorDtype dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

std::string checksum(std::span<const Part> parts, const std::string& fingerprint,
                     int64_t position) {
  uint64_t hash = hash_text(cat(fingerprint, " ", position), 0);
  for (const Part& part : parts) {
    const auto* const dtype = part.dtype == TensorDtype::kI64 ? "Long" : "Float";
    hash = hash_tensor(part.name, part.shape, dtype, part.bytes, hash);
  }
  return hash_digits(hash);
}

// Where a layer's two tensors lie in a slot, in numbers, and their shapes.
struct LayerPlace {
  LayerPlace(const ModelConfig& c, int64_t layer)
      : window_shape{1, c.conv_kernel, c.hidden_size},
        S_shape{1, c.num_heads, c.head_k_dim, c.head_v_dim},
        window_size(size_t(c.conv_kernel * c.hidden_size)),
        S_size(size_t(c.num_heads * c.head_k_dim * c.head_v_dim)),
        window(size_t(layer) * (window_size + S_size)),
        S(window + window_size),
        window_name(cat("layers.", layer, ".window")),
        S_name(cat("layers.", layer, ".S")) {}

  std::vector<int64_t> window_shape, S_shape;
  size_t window_size, S_size;
  size_t window, S;
  std::string window_name, S_name;
};

// [n,3]: id, in the prompt, times in the output.
std::vector<int64_t> count_rows(const std::vector<TokenCount>& counts) {
  std::vector<int64_t> rows;
  rows.reserve(counts.size() * 3);
  for (const TokenCount& count : counts) {
    rows.insert(rows.end(), {count.id, count.in_prompt ? 1 : 0, int64_t{count.in_output}});
  }
  return rows;
}

std::vector<TokenCount> counts_of(const std::vector<int64_t>& rows, int64_t vocab_size,
                                  const std::string& source) {
  std::vector<TokenCount> counts;
  std::unordered_set<int64_t> seen;
  counts.reserve(rows.size() / 3);
  for (size_t i = 0; i < rows.size(); i += 3) {
    const int64_t id = rows[i], prompt = rows[i + 1], times = rows[i + 2];
    if (id < 0 || id >= vocab_size || prompt < 0 || prompt > 1 || times < 0 ||
        times > std::numeric_limits<uint32_t>::max() || !seen.insert(id).second) {
      fail_input(source, ": the tensor counts has the row (", id, ", ", prompt, ", ", times,
                 "), which no state of this model can have; the file is damaged");
    }
    counts.push_back({TokenId(id), prompt == 1, uint32_t(times)});
  }
  return counts;
}

// The bytes of one state file, with every field checked as it is read.
class StateReader {
 public:
  StateReader(std::span<const std::byte> bytes, const std::string& source)
      : bytes_(bytes), source_(source), header_(parse_safetensors_header(bytes, source)) {}

  const std::string& text(const std::string& field) const {
    const auto at = header_.metadata.find(field);
    if (at == header_.metadata.end()) {
      fail_input(source_, " has no metadata field ", quoted(field), "; it is not a saved state");
    }
    return at->second;
  }

  int64_t position() const {
    const std::string& digits = text("position");
    const char* const end = digits.data() + digits.size();
    int64_t value = 0;
    const auto got = std::from_chars(digits.data(), end, value);
    if (got.ec != std::errc() || got.ptr != end || value < 1) {
      fail_input(source_, ": the metadata field position is ", quoted(digits),
                 ", but must be a whole number above 0");
    }
    return value;
  }

  // The tensor's bytes; -1 in `shape` is any size.
  std::span<const std::byte> tensor(const std::string& name, const std::vector<int64_t>& shape,
                                    TensorDtype dtype) {
    const auto info = std::ranges::find(header_.tensors, name, &TensorInfo::name);
    if (info == header_.tensors.end()) {
      fail_input(source_, " has no tensor ", quoted(name), "; it is not a state of this model");
    }
    const bool fits = std::ranges::equal(
        info->shape, shape, [](int64_t got, int64_t want) { return want < 0 || got == want; });
    if (!fits || info->dtype != dtype) {
      fail_input(source_, ": the tensor ", name, " has another shape or dtype than a state of ",
                 "this model; the file is damaged");
    }
    const auto bytes = bytes_.subspan(header_.data_start + info->begin, info->bytes());
    read_.push_back({name, dtype, info->shape, bytes});
    return bytes;
  }

  // Everything that was read, in that order.
  const std::vector<Part>& read() const { return read_; }

 private:
  const std::span<const std::byte> bytes_;
  const std::string& source_;
  const SafetensorsHeader header_;
  std::vector<Part> read_;
};

// No bytes: no pointers either.
void copy(std::span<const std::byte> bytes, void* to) {
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

}  // namespace

void save_state(const Path& path, const ModelConfig& config, const SequenceSnapshot& state,
                const std::string& fingerprint) {
  if (int64_t(state.slot.size() * sizeof(float)) != config.state_bytes()) {
    fail("a state of ", state.slot.size(), " numbers is not one of this model");
  }
  const auto bytes = [](const auto& numbers, size_t from, size_t count) {
    return std::as_bytes(std::span(numbers).subspan(from, count));
  };
  std::vector<Part> parts;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const LayerPlace at(config, i);
    parts.push_back({at.S_name, TensorDtype::kF32, at.S_shape, bytes(state.slot, at.S, at.S_size)});
    parts.push_back({at.window_name, TensorDtype::kF32, at.window_shape,
                     bytes(state.slot, at.window, at.window_size)});
  }
  parts.push_back({"logits",
                   TensorDtype::kF32,
                   {int64_t(state.logits.size())},
                   bytes(state.logits, 0, state.logits.size())});
  const std::vector<int64_t> rows = count_rows(state.counts);
  parts.push_back({"counts",
                   TensorDtype::kI64,
                   {int64_t(state.counts.size()), 3},
                   bytes(rows, 0, rows.size())});
  std::vector<TensorInfo> layout;
  uint64_t end = 0;
  for (const Part& part : parts) {
    const uint64_t begin = std::exchange(end, end + part.bytes.size());
    layout.push_back({part.name, part.dtype, part.shape, begin, end});
  }
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) fail("cannot make the directory ", path.parent_path().string(), ": ", error.message());
  AtomicFile file(path);
  file.write(make_safetensors_header(layout,
                                     {{"format", kFormat},
                                      {"model", fingerprint},
                                      {"position", std::to_string(state.position)},
                                      {"checksum", checksum(parts, fingerprint, state.position)}}));
  for (const Part& part : parts) file.write(part.bytes);
  file.commit();
}

std::shared_ptr<const SequenceSnapshot> parse_state(std::span<const std::byte> bytes,
                                                    const ModelConfig& config,
                                                    const std::string& fingerprint,
                                                    const std::string& source) {
  StateReader reader(bytes, source);
  if (reader.text("format") != kFormat) {
    fail_input(source, " has the format ", quoted(reader.text("format")), ", but only ", kFormat,
               " is known");
  }
  if (reader.text("model") != fingerprint) {
    fail_input(source, " is the state of another model (its fingerprint is ",
               quoted(reader.text("model")), ", this model's ", fingerprint,
               "); load it with the model that saved it");
  }
  auto state = std::make_shared<SequenceSnapshot>();
  state->position = reader.position();
  state->slot.resize(size_t(config.state_bytes()) / sizeof(float));
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const LayerPlace at(config, i);
    copy(reader.tensor(at.S_name, at.S_shape, TensorDtype::kF32), state->slot.data() + at.S);
    copy(reader.tensor(at.window_name, at.window_shape, TensorDtype::kF32),
         state->slot.data() + at.window);
  }
  state->logits.resize(size_t(config.vocab_size));
  copy(reader.tensor("logits", {config.vocab_size}, TensorDtype::kF32), state->logits.data());
  const auto counts = reader.tensor("counts", {-1, 3}, TensorDtype::kI64);
  std::vector<int64_t> rows(counts.size() / sizeof(int64_t));
  copy(counts, rows.data());
  if (checksum(reader.read(), fingerprint, state->position) != reader.text("checksum")) {
    fail_input(source, " is damaged (its checksum does not fit its data); save it again");
  }
  state->counts = counts_of(rows, config.vocab_size, source);
  return state;
}

std::shared_ptr<const SequenceSnapshot> load_state(const Path& path, const ModelConfig& config,
                                                   const std::string& fingerprint) {
  const MappedFile file(path);
  return parse_state(file.bytes(), config, fingerprint, path.string());
}

Path default_state_directory() {
  const auto set = [](const char* value) { return value != nullptr && *value != '\0'; };
  if (const char* const state = std::getenv("XDG_STATE_HOME"); set(state)) {
    return Path(state) / "laplace" / "states";
  }
  const char* const home = std::getenv("HOME");
  return Path(set(home) ? home : ".") / ".local" / "state" / "laplace" / "states";
}

Path state_path(const Path& directory, std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  if (name.empty() || name.size() > kMaxNameLength || !std::ranges::all_of(name, allowed)) {
    fail_input("the name ", quoted(name), " must be 1 to ", kMaxNameLength,
               " letters, digits, _ or -");
  }
  return directory / cat(name, ".safetensors");
}

}  // namespace laplace
