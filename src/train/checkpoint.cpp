// See checkpoint.h.
#include "train/checkpoint.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "model/model_directory.h"
#include "model/weight_files.h"

namespace laplace {

namespace {

constexpr auto kOptimizerFile = "optimizer.safetensors";
constexpr auto kStateFile = "state.json";

// What lies in the run's directory of checkpoints; nothing where there is none yet. One that cannot
// be read (a link to a disk that is not there) is refused: it may hold the whole run.
std::vector<std::filesystem::directory_entry> listed(const Path& run) {
  const Path directory = run / kCheckpointsName;
  std::error_code code;
  if (std::filesystem::symlink_status(directory, code).type() ==
      std::filesystem::file_type::not_found) {
    return {};
  }
  std::filesystem::directory_iterator entries(directory, code);
  if (code) {
    fail_input("cannot read ", directory.string(), ": ", code.message(),
               "; make it readable, or choose another --out");
  }
  return {std::filesystem::begin(entries), std::filesystem::end(entries)};
}

// Steps of the checkpoints in a run directory, ascending.
std::vector<int64_t> checkpoint_steps(const Path& run) {
  std::vector<int64_t> steps;
  for (const auto& entry : listed(run)) {
    const int64_t step = checkpoint_step(entry.path().filename().string());
    if (step >= 0) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Path place_of(const Path& run, int64_t step) {
  return run / kCheckpointsName / checkpoint_name(step);
}

// Removes what is older than the `keep` newest complete checkpoints up to `newest`, which was just
// written. Later ones are damaged, or the run would not have gone back behind them: they count as
// nothing, and stay until the run gets there again.
void remove_old(const Path& run, int64_t newest, int64_t keep) {
  if (keep <= 0) return;
  const auto steps = checkpoint_steps(run);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (*step > newest) continue;
    if (keep > 0) {
      if (manifest_problem(place_of(run, *step), /*hashes=*/false).empty()) --keep;
      continue;
    }
    std::error_code code;
    std::filesystem::remove_all(place_of(run, *step), code);
    if (code) log_warning("cannot remove an old checkpoint: ", code.message());
  }
}

// The newest checkpoint whose every byte is what its manifest says; empty when there is none at
// all. Refuses where all are damaged: what they still hold is not to be trained over.
Path newest_sound(const Path& run) {
  const auto steps = checkpoint_steps(run);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const Path directory = place_of(run, *step);
    const std::string problem = manifest_problem(directory, /*hashes=*/true);
    if (problem.empty()) return directory;
    if (*step == steps.front()) {
      fail_input(problem, ", and no checkpoint of ", run.string(),
                 " is sound; restore one, or begin anew with another --out");
    }
    log_warning(problem, "; falling back to the checkpoint before");
  }
  return {};
}

Json generation_config(const ModelConfig& config) {
  Json json;
  if (config.bos_token_id >= 0) json["bos_token_id"] = config.bos_token_id;
  if (config.eos_token_id >= 0) json["eos_token_id"] = config.eos_token_id;
  json["do_sample"] = true;
  json["temperature"] = 0.8;
  return json;
}

// What Hugging Face's tokenizers need beside tokenizer.json: which special token ends a text.
Json tokenizer_config(const Tokenizer& tokenizer, const ModelConfig& config) {
  Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
               {"clean_up_tokenization_spaces", false}};
  const auto name = [&](const char* field, int64_t id) {
    if (id >= 0 && id < tokenizer.vocab_size()) json[field] = tokenizer.bytes_of(TokenId(id));
  };
  name("bos_token", config.bos_token_id);
  name("eos_token", config.eos_token_id);
  return json;
}

}  // namespace

Json RunState::to_json() const {
  Json json;
  json["step"] = step;
  json["cursor"] = cursor;
  json["total_steps"] = total_steps;
  json["adamw_steps"] = adamw_steps;
  json["skipped"] = skipped;
  json["seconds"] = seconds;
  json["seed"] = seed;
  json["batch"] = batch;
  json["seq_length"] = seq_length;
  json["train_tokens"] = train_tokens;
  json["data"] = data;
  json["dtype"] = dtype;
  return json;
}

RunState RunState::from_json(const Json& json, const std::string& source) {
  constexpr int64_t kMost = INT64_MAX;
  JsonFields fields(json, source);
  RunState state;
  state.step = fields.integer("step", 0, kMost);
  state.cursor = uint64_t(fields.integer("cursor", 0, kMost));
  state.total_steps = fields.integer("total_steps", 0, kMost);
  state.adamw_steps = fields.integer("adamw_steps", 0, kMost);
  state.skipped = fields.integer("skipped", 0, kMost);
  state.seconds = fields.number("seconds", 0, 1e12);
  state.seed = uint64_t(fields.integer("seed", 0, kMost));
  state.batch = fields.integer("batch", 1, kMost);
  state.seq_length = fields.integer("seq_length", 1, kMost);
  state.train_tokens = fields.integer("train_tokens", 1, kMost);
  state.data = fields.text("data", "");  // of older runs it is not known
  state.dtype = fields.text("dtype");
  fields.finish();
  return state;
}

namespace {

// Fills a checkpoint under a temporary name and renames it to `place`.
void write_checkpoint(const Path& place, const ModelConfig& config,
                      const std::optional<Tokenizer>& tokenizer, const Learner& learner,
                      const RunState& state) {
  AtomicDirectory directory(place);
  const Path& to = directory.temporary();
  ModelConfig stored = config;
  stored.torch_dtype = "float32";
  write_file_atomic(to / "config.json", to_text(stored.to_json()));
  write_file_atomic(to / "generation_config.json", to_text(generation_config(config)));
  if (tokenizer) {
    tokenizer->save(to);
    write_file_atomic(to / "tokenizer_config.json", to_text(tokenizer_config(*tokenizer, config)));
  }
  write_safetensors(to / "model.safetensors", learner.parameters(), {{"format", "pt"}});
  write_safetensors(to / kOptimizerFile, learner.optimizer_state());
  write_file_atomic(to / kStateFile, to_text(state.to_json()));
  write_manifest(to);
  directory.commit();
}

}  // namespace

void save_checkpoint(const Path& run, const ModelConfig& config,
                     const std::optional<Tokenizer>& tokenizer, const Learner& learner,
                     const RunState& state, int64_t keep) {
  const Path checkpoints = run / kCheckpointsName;
  const std::string name = checkpoint_name(state.step);
  std::error_code code;
  std::filesystem::create_directories(checkpoints, code);
  if (code) fail("cannot create the directory ", checkpoints.string(), ": ", code.message());
  const bool there = std::filesystem::exists(checkpoints / name);
  // A sound one is this one. A damaged one (its run fell back to the one before) makes way.
  if (!there || !manifest_problem(checkpoints / name, /*hashes=*/true).empty()) {
    std::filesystem::remove_all(checkpoints / name, code);
    write_checkpoint(checkpoints / name, config, tokenizer, learner, state);
  }
  write_file_atomic(checkpoints / kLatestName, name + "\n");
  remove_old(run, state.step, keep);
}

void remove_left_overs(const Path& run) {
  for (const auto& entry : listed(run)) {
    if (unfinished_checkpoint_step(entry.path().filename().string()) < 0) continue;
    std::error_code code;
    std::filesystem::remove_all(entry.path(), code);
    if (code) log_warning("cannot remove ", entry.path().string(), ": ", code.message());
  }
}

std::optional<RunState> load_checkpoint(const Path& run, const ModelConfig& config,
                                        Learner& learner) {
  const Path directory = newest_sound(run);
  if (directory.empty()) return std::nullopt;
  ModelConfig stored = ModelConfig::load(directory);
  stored.torch_dtype = config.torch_dtype;
  if (stored != config) {
    fail_input("--config is not the config that ", run.string(), " was begun with (",
               (directory / "config.json").string(),
               "); resume with that, or choose another --out");
  }
  const Path state_path = directory / kStateFile;
  const RunState state = RunState::from_json(load_json(state_path), state_path.string());
  learner.restore(load_weights(directory, config), SafetensorsFile(directory / kOptimizerFile),
                  state.adamw_steps);
  return state;
}

bool has_checkpoints(const Path& run) { return !checkpoint_steps(run).empty(); }

}  // namespace laplace
