// See model_directory.h.
#include "model/model_directory.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <functional>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/xxh64.h"

namespace laplace {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr int64_t kManifestFormat = 1;

std::string hash_of(const Path& file) {
  const MappedFile map(file);
  return strf("%016llx", static_cast<unsigned long long>(xxh64(map.bytes())));
}

// A relative path that stays inside the directory it is relative to.
bool stays_inside(const Path& path) {
  return !path.empty() && path.is_relative() &&
         std::none_of(path.begin(), path.end(), [](const Path& part) { return part == ".."; });
}

void check_listed_file(const Path& directory, const std::string& name, const Json& entry,
                       bool hashes) {
  JsonFields fields(entry, cat((directory / kManifestName).string(), ": ", quoted(name)));
  const int64_t bytes = fields.integer("bytes", 0, INT64_MAX);
  const std::string hash = fields.text("xxh64");
  fields.finish();
  const Path file = directory / name;
  if (!stays_inside(name) || !fs::is_regular_file(file)) {
    fail_input(file.string(), " is missing, though the manifest lists it");
  }
  const uint64_t size = fs::file_size(file);
  if (size != static_cast<uint64_t>(bytes)) {
    fail_input(file.string(), " has ", size, " bytes, but the manifest states ", bytes);
  }
  if (hashes && hash_of(file) != hash) {
    fail_input(file.string(), " is damaged: its hash is not the manifest's");
  }
}

// Throws Error, or a std::exception of the file system, at the first fault.
void check_manifest(const Path& directory, bool hashes) {
  const Path manifest = directory / kManifestName;
  const Json json = load_json(manifest, {.max_bytes = 16 << 20});
  JsonFields fields(json, manifest.string());
  fields.integer("format", kManifestFormat, kManifestFormat);
  const Json& files = fields.any("files");
  fields.finish();
  if (!files.is_object() || !files.contains("config.json")) {
    fail_input(manifest.string(), " does not list config.json");
  }
  for (const auto& [name, entry] : files.items()) check_listed_file(directory, name, entry, hashes);
}

// By its name: of a checkpoint, or of one that is being written (its manifest comes last).
bool is_checkpoint(const Path& directory) {
  const std::string name = fs::absolute(directory).lexically_normal().filename().string();
  return checkpoint_step(name) >= 0 || unfinished_checkpoint_step(name) >= 0;
}

// The name that `latest` holds, "" when there is none to be had.
std::string read_latest(const Path& checkpoints) {
  const Path latest = checkpoints / kLatestName;
  std::error_code code;
  if (fs::is_symlink(latest, code)) return fs::read_symlink(latest, code).filename().string();
  if (!fs::is_regular_file(latest, code)) return "";
  try {
    std::string name = read_file(latest, 4096);
    while (!name.empty() && std::isspace(static_cast<unsigned char>(name.back()))) name.pop_back();
    return name;
  } catch (const Error&) {
    return "";
  }
}

// The steps of all checkpoints, newest first.
std::vector<int64_t> list_steps(const Path& checkpoints) {
  std::vector<int64_t> steps;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoints)) {
    const int64_t step = checkpoint_step(entry.path().filename().string());
    if (step >= 0 && entry.is_directory()) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

Path latest_checkpoint(const Path& checkpoints) {
  const std::string latest = read_latest(checkpoints);
  const int64_t named = checkpoint_step(latest);
  std::string problem = cat((checkpoints / kLatestName).string(),
                            latest.empty() ? " is missing" : " does not name a checkpoint");
  const auto complete = [&](int64_t step) {
    const Path directory = checkpoints / checkpoint_name(step);
    const std::string found = manifest_problem(directory, false);
    if (!found.empty()) problem = found;
    return found.empty();
  };
  if (named >= 0 && complete(named)) return checkpoints / checkpoint_name(named);
  std::vector<int64_t> steps = list_steps(checkpoints);
  // Those before the named one first: what is newer than `latest` was never announced.
  std::stable_partition(steps.begin(), steps.end(),
                        [named](int64_t step) { return named < 0 || step < named; });
  const std::string first_problem = problem;
  for (const int64_t step : steps) {
    if (step == named || !complete(step)) continue;
    log_warning(first_problem, "; falling back to ", checkpoint_name(step));
    return checkpoints / checkpoint_name(step);
  }
  fail_input(checkpoints.string(), " holds no complete checkpoint (", first_problem,
             "); name another run");
}

}  // namespace

std::string checkpoint_name(int64_t step) {
  return strf("step-%08lld", static_cast<long long>(step));
}

int64_t checkpoint_step(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return -1;
  const std::string_view digits = name.substr(kStepPrefix.size());
  int64_t step = -1;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool whole = code == std::errc() && end == digits.data() + digits.size();
  return whole && step >= 0 && checkpoint_name(step) == name ? step : -1;
}

int64_t unfinished_checkpoint_step(std::string_view name) {
  constexpr std::string_view kBegin = ".", kEnd = ".tmp";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return -1;
  name.remove_suffix(kEnd.size());
  return name.empty() ? -1 : checkpoint_step(name.substr(kBegin.size()));
}

void write_manifest(const Path& directory) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file() || entry.is_symlink()) continue;
    names.push_back(entry.path().lexically_relative(directory).generic_string());
  }
  std::sort(names.begin(), names.end());
  Json files = Json::object();
  for (const std::string& name : names) {
    if (name == kManifestName) continue;
    const Path file = directory / name;
    files[name] = {{"bytes", fs::file_size(file)}, {"xxh64", hash_of(file)}};
  }
  write_file_atomic(directory / kManifestName,
                    to_text({{"format", kManifestFormat}, {"files", files}}));
}

std::string manifest_problem(const Path& directory, bool hashes) {
  try {
    check_manifest(directory, hashes);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

void verify_manifest(const Path& directory, bool hashes) {
  const std::string problem = manifest_problem(directory, hashes);
  if (!problem.empty()) fail_input(problem, "; take another checkpoint");
}

Path open_model_directory(const Path& path) {
  if (!fs::exists(path)) fail_input(path.string(), " does not exist; check the path");
  if (!fs::is_directory(path)) {
    fail_input(path.string(), " is a file; name the model directory that holds it");
  }
  if (fs::is_directory(path / kCheckpointsName)) return latest_checkpoint(path / kCheckpointsName);
  if (fs::exists(path / "config.json")) {
    // A checkpoint named directly: half a one is refused, not passed over.
    if (fs::exists(path / kManifestName) || is_checkpoint(path)) verify_manifest(path, false);
    return path;
  }
  if (path.filename() == kCheckpointsName || fs::exists(path / kLatestName)) {
    return latest_checkpoint(path);
  }
  fail_input(path.string(),
             " is neither a model directory (it has no config.json) nor a run (it has no ",
             kCheckpointsName, "/); check the path");
}

}  // namespace laplace
