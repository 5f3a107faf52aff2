// A sequence's state in a file, so that a conversation outlives the process.
//
// safetensors: "layers.{i}.S" [1,H,dk,dv] and "layers.{i}.window" [1,k,D], float32; "logits" [V]
// float32, those of the last token; "counts" [n,3] int64, rows of (id, in the prompt 0|1, times in
// the output). Metadata: "format" "laplace-state-1", "model" (the fingerprint), "position",
// "checksum" (XXH64 over fingerprint, position and all data). All numbers are exact: a sequence
// that is loaded goes on with the same bits as the one saved.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/files.h"
#include "model/config.h"
#include "serve/engine/snapshot.h"

namespace laplace {

// Sixteen hexadecimal digits that stand for a model: XXH64 over its configuration and every byte of
// its weights, so that two checkpoints of one run differ and a resharded copy does not. Reads all
// weights (some 10 GB/s when they are in the page cache). `directory`: as open_model_directory
// returns it.
std::string model_fingerprint(const Path& directory, const ModelConfig& config);

// Appears under `path` only when complete; its directory is made when it is missing. May run on any
// thread beside the engine.
void save_state(const Path& path, const ModelConfig& config, const SequenceSnapshot& state,
                const std::string& fingerprint);

// Throws Error(kBadInput) in one sentence when the file is missing or damaged, or when it is the
// state of another model.
std::shared_ptr<const SequenceSnapshot> load_state(const Path& path, const ModelConfig& config,
                                                   const std::string& fingerprint);

// Named states in one directory: DIR/NAME.safetensors.
// $XDG_STATE_HOME/laplace/states, or ~/.local/state/laplace/states.
Path default_state_directory();
// The file of a name. Throws Error(kBadInput) unless it is 1 to 64 of A-Z a-z 0-9 _ -.
Path state_path(const Path& directory, std::string_view name);

}  // namespace laplace
