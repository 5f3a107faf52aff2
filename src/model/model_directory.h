// Directories that can be opened as a model: a model directory, or a run directory, which stands
// for its latest complete checkpoint; and the manifest that tells a complete checkpoint from half a
// one.
//
// A checkpoint is the directory checkpoints/step-<8 digits or more>/ of a run. Its writer puts the
// manifest in last, renames the directory to its final name, then lets `checkpoints/latest` name
// it: a text file holding the directory's name (a symbolic link to the directory is understood
// too). manifest.json: {"format": 1, "files": {"model.safetensors": {"bytes": 123, "xxh64": "16
// digits"}, ...}} with every other file of the directory, paths relative to it with '/'.
#pragma once

#include <string>
#include <string_view>

#include "base/files.h"

namespace laplace {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kCheckpointsName = "checkpoints";
inline constexpr const char* kLatestName = "latest";

// step 100 -> "step-00000100"
std::string checkpoint_name(int64_t step);
// "step-00000100" -> 100; -1 for any other text.
int64_t checkpoint_step(std::string_view name);
// The same for the name under which AtomicDirectory fills one: ".step-00000100.tmp" -> 100.
int64_t unfinished_checkpoint_step(std::string_view name);

// Hashes all files in `directory` (links excepted) and writes manifest.json atomically. The files
// must be complete and synced; nothing may write to them meanwhile. Throws Error(kFailure) when a
// disk does.
void write_manifest(const Path& directory);

// What is wrong with the checkpoint in `directory`, as a sentence, or "" when nothing is: every
// file the manifest lists, config.json among them, is there with its size, and with its hash when
// `hashes` is true (then everything is read). Does not throw for damage.
std::string manifest_problem(const Path& directory, bool hashes);
// The same as an error: throws Error(kBadInput) with that sentence.
void verify_manifest(const Path& directory, bool hashes);

// The model directory that `path` stands for. A run directory (it holds checkpoints/; or that
// directory itself) stands for the checkpoint that `latest` names, or, where that is missing or
// damaged, the newest complete one before it, with a warning. Any other directory with config.json
// is itself a model. Throws Error(kBadInput) when there is none, and for a checkpoint named
// directly that is incomplete.
Path open_model_directory(const Path& path);

}  // namespace laplace
