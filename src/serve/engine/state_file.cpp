// See state_file.h.
#include "serve/engine/state_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "model/parameters.h"
#include "model/safetensors.h"
#include "model/weight_files.h"
#include "model/xxh64.h"

namespace laplace {

namespace {

constexpr const char* kFormat = "laplace-state-1";
constexpr size_t kMaxNameLength = 64;

std::string hex(uint64_t value) { return strf("%016llx", static_cast<unsigned long long>(value)); }

uint64_t hash_text(std::string_view text, uint64_t seed) {
  return xxh64(std::as_bytes(std::span(text)), seed);
}

// `tensor` contiguous on the host. Shape and dtype count too.
uint64_t hash_tensor(const std::string& name, const at::Tensor& tensor, uint64_t seed) {
  seed = hash_text(name, seed);
  seed = hash_text(cat(tensor.sizes(), tensor.scalar_type()), seed);
  return xxh64({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}, seed);
}

std::string checksum(std::span<const NamedTensor> tensors, const std::string& fingerprint,
                     int64_t position) {
  uint64_t hash = hash_text(cat(fingerprint, " ", position), 0);
  for (const auto& [name, tensor] : tensors) hash = hash_tensor(name, tensor, hash);
  return hex(hash);
}

at::Tensor counts_tensor(const std::vector<TokenCount>& counts) {
  const at::Tensor rows = at::empty({int64_t(counts.size()), 3}, at::kLong);
  auto* out = rows.mutable_data_ptr<int64_t>();
  for (const TokenCount& count : counts) {
    *out++ = count.id;
    *out++ = count.in_prompt ? 1 : 0;
    *out++ = count.in_output;
  }
  return rows;
}

std::vector<TokenCount> counts_of(const at::Tensor& rows, int64_t vocab_size,
                                  const std::string& file) {
  std::vector<TokenCount> counts;
  const auto* row = rows.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows.size(0); ++i, row += 3) {
    const int64_t id = row[0], times = row[2];
    if (id < 0 || id >= vocab_size || times < 0 || times > std::numeric_limits<uint32_t>::max()) {
      fail_input(file, ": the tensor counts has the row (", id, ", ", row[1], ", ", times,
                 "), which no state of this model can have; the file is damaged");
    }
    counts.push_back({TokenId(id), row[1] != 0, uint32_t(times)});
  }
  return counts;
}

// A layer's two parts of a slot, as tensors over it.
struct LayerViews {
  at::Tensor S, window;
};

LayerViews views_of(const ModelConfig& c, const std::vector<float>& slot, int64_t layer) {
  const int64_t window = c.conv_kernel * c.hidden_size;
  const int64_t floats = window + c.num_heads * c.head_k_dim * c.head_v_dim;
  // from_blob takes a pointer to non-const; nobody writes to the views of a snapshot.
  auto* const at_layer = const_cast<float*>(slot.data()) + layer * floats;
  return {
      at::from_blob(at_layer + window, {1, c.num_heads, c.head_k_dim, c.head_v_dim}, at::kFloat),
      at::from_blob(at_layer, {1, c.conv_kernel, c.hidden_size}, at::kFloat)};
}

// One state file, with every field checked as it is read.
class StateReader {
 public:
  explicit StateReader(const Path& path) : name_(path.string()), file_(path) {}

  const std::string& text(const std::string& field) const {
    const auto at = file_.metadata().find(field);
    if (at == file_.metadata().end()) {
      fail_input(name_, " has no metadata field ", laplace::quoted(field),
                 "; it is not a saved state");
    }
    return at->second;
  }

  int64_t position() const {
    const std::string& digits = text("position");
    const char* const end = digits.data() + digits.size();
    int64_t value = 0;
    const auto got = std::from_chars(digits.data(), end, value);
    if (got.ec != std::errc() || got.ptr != end || value < 1) {
      fail_input(name_, ": the metadata field position is ", laplace::quoted(digits),
                 ", but must be a whole number above 0");
    }
    return value;
  }

  // A copy; -1 in `shape` is any size.
  at::Tensor tensor(const std::string& field, const std::vector<int64_t>& shape,
                    at::ScalarType dtype) {
    const TensorInfo& info = file_.info(field);
    const bool fits = std::ranges::equal(
        info.shape, shape, [](int64_t got, int64_t want) { return want < 0 || got == want; });
    if (!fits || info.dtype != dtype) {
      fail_input(name_, ": the tensor ", field, " has another shape or dtype than a state of this ",
                 "model; the file is damaged");
    }
    read_.emplace_back(field, file_.tensor(field).clone());
    return read_.back().second;
  }

  // Everything that was read, in that order.
  const std::vector<NamedTensor>& read() const { return read_; }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  SafetensorsFile file_;
  std::vector<NamedTensor> read_;
};

}  // namespace

std::string model_fingerprint(const Path& directory, const ModelConfig& config) {
  uint64_t hash = hash_text(to_line(config.to_json()), 0);
  const auto table = parameter_table(config);
  const std::vector<at::Tensor> weights = load_weights(directory, config);
  for (size_t i = 0; i < weights.size(); ++i) hash = hash_tensor(table[i].name, weights[i], hash);
  return hex(hash);
}

void save_state(const Path& path, const ModelConfig& config, const SequenceSnapshot& state,
                const std::string& fingerprint) {
  if (int64_t(state.slot.size() * sizeof(float)) != config.state_bytes()) {
    fail("a state of ", state.slot.size(), " numbers is not one of this model");
  }
  std::vector<NamedTensor> tensors;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const LayerViews views = views_of(config, state.slot, i);
    tensors.emplace_back(cat("layers.", i, ".S"), views.S);
    tensors.emplace_back(cat("layers.", i, ".window"), views.window);
  }
  tensors.emplace_back("logits", at::tensor(state.logits, at::kFloat));
  tensors.emplace_back("counts", counts_tensor(state.counts));
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) fail("cannot make the directory ", path.parent_path().string(), ": ", error.message());
  write_safetensors(path, tensors,
                    {{"format", kFormat},
                     {"model", fingerprint},
                     {"position", std::to_string(state.position)},
                     {"checksum", checksum(tensors, fingerprint, state.position)}});
}

std::shared_ptr<const SequenceSnapshot> load_state(const Path& path, const ModelConfig& config,
                                                   const std::string& fingerprint) {
  StateReader reader(path);
  if (reader.text("format") != kFormat) {
    fail_input(reader.name(), " has the format ", laplace::quoted(reader.text("format")),
               ", but only ", kFormat, " is known");
  }
  if (reader.text("model") != fingerprint) {
    fail_input(reader.name(), " is the state of another model (its fingerprint is ",
               laplace::quoted(reader.text("model")), ", this model's ", fingerprint,
               "); load it with the model that saved it");
  }
  const ModelConfig& c = config;
  auto state = std::make_shared<SequenceSnapshot>();
  state->position = reader.position();
  state->slot.resize(size_t(c.state_bytes()) / sizeof(float));
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const LayerViews views = views_of(c, state->slot, i);
    views.S.copy_(reader.tensor(cat("layers.", i, ".S"), views.S.sizes().vec(), at::kFloat));
    views.window.copy_(
        reader.tensor(cat("layers.", i, ".window"), views.window.sizes().vec(), at::kFloat));
  }
  const at::Tensor logits = reader.tensor("logits", {c.vocab_size}, at::kFloat);
  const auto* const values = logits.const_data_ptr<float>();
  state->logits.assign(values, values + c.vocab_size);
  const at::Tensor counts = reader.tensor("counts", {-1, 3}, at::kLong);
  if (checksum(reader.read(), fingerprint, state->position) != reader.text("checksum")) {
    fail_input(reader.name(), " is damaged (its checksum does not fit its data); save it again");
  }
  state->counts = counts_of(counts, c.vocab_size, reader.name());
  return state;
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
    fail_input("the name ", laplace::quoted(name), " must be 1 to ", kMaxNameLength,
               " letters, digits, _ or -");
  }
  return directory / cat(name, ".safetensors");
}

}  // namespace laplace
