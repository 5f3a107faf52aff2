// See state_file.h.
#include "serve/engine/state_file.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "base/error.h"
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

at::Tensor counts_tensor(const TokenCounts& counts) {
  const auto seen = counts.seen();
  const at::Tensor rows = at::empty({int64_t(seen.size()), 3}, at::kLong);
  auto* out = rows.mutable_data_ptr<int64_t>();
  for (const int32_t id : seen) {
    *out++ = id;
    *out++ = counts.in_prompt(id) ? 1 : 0;
    *out++ = counts.in_output(id);
  }
  return rows;
}

TokenCounts counts_of(const at::Tensor& rows, int64_t vocab_size, const std::string& file) {
  TokenCounts counts(vocab_size);
  const auto* row = rows.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows.size(0); ++i, row += 3) {
    const int64_t id = row[0], times = row[2];
    if (id < 0 || id >= vocab_size || times < 0 || times > std::numeric_limits<uint32_t>::max()) {
      fail_input(file, ": the tensor counts has the row (", id, ", ", row[1], ", ", times,
                 "), which no state of this model can have; the file is damaged");
    }
    if (row[1] != 0) counts.add_prompt(int32_t(id));
    counts.add_output(int32_t(id), uint32_t(times));
  }
  return counts;
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

void save_state(const Path& path, const SequenceState& state, const std::string& fingerprint) {
  if (!state.logits.defined()) fail_input("there is nothing to save yet; say something first");
  const auto host = [](const at::Tensor& x) { return x.to(at::kCPU).contiguous(); };
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < state.model.size(); ++i) {
    tensors.emplace_back(cat("layers.", i, ".S"), host(state.model[i].S));
    tensors.emplace_back(cat("layers.", i, ".window"), host(state.model[i].window));
  }
  tensors.emplace_back("logits", state.logits);
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

SequenceState load_state(const Path& path, const Decoder& decoder, const std::string& fingerprint) {
  const ModelConfig& c = decoder.config();
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
  SequenceState state{{}, {}, TokenCounts(c.vocab_size), reader.position()};
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    at::Tensor S = reader.tensor(cat("layers.", i, ".S"),
                                 {1, c.num_heads, c.head_k_dim, c.head_v_dim}, at::kFloat);
    at::Tensor window =
        reader.tensor(cat("layers.", i, ".window"), {1, c.conv_kernel, c.hidden_size}, at::kFloat);
    state.model.push_back({S.to(decoder.device()), window.to(decoder.device())});
  }
  state.logits = reader.tensor("logits", {c.vocab_size}, at::kFloat);
  const at::Tensor counts = reader.tensor("counts", {-1, 3}, at::kLong);
  if (checksum(reader.read(), fingerprint, state.position) != reader.text("checksum")) {
    fail_input(reader.name(), " is damaged (its checksum does not fit its data); save it again");
  }
  state.counts = counts_of(counts, c.vocab_size, reader.name());
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
