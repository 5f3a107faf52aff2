// A sequence's state in a file, so that a conversation outlives the process.
//
// safetensors: "layers.{i}.S" [1,H,dk,dv] and "layers.{i}.window" [1,k,D], float32; "logits" [V]
// float32, those of the last token; "counts" [n,3] int64, rows of (id, in the prompt 0|1, times in
// the output). Metadata: "format" "laplace-state-1", "model" (the fingerprint), "position",
// "checksum" (XXH64 over fingerprint, position and all data). All numbers are exact: a sequence
// that is loaded goes on with the same bits as the one saved. The fingerprint is the model's, see
// model_fingerprint.h. No LibTorch here.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/files.h"
#include "model/config.h"
#include "serve/engine/snapshot.h"

namespace laplace {

// Appears under `path` only when complete; its directory is made when it is missing. May run on any
// thread beside the engine.
void save_state(const Path& path, const ModelConfig& config, const SequenceSnapshot& state,
                const std::string& fingerprint);

// Throws Error(kBadInput) in one sentence when the file is missing or damaged, or when it is the
// state of another model.
std::shared_ptr<const SequenceSnapshot> load_state(const Path& path, const ModelConfig& config,
                                                   const std::string& fingerprint);
// The same of a file's bytes, anyhow aligned; `source` names them in errors.
std::shared_ptr<const SequenceSnapshot> parse_state(std::span<const std::byte> bytes,
                                                    const ModelConfig& config,
                                                    const std::string& fingerprint,
                                                    const std::string& source);

// Named states in one directory: DIR/NAME.safetensors.
// $XDG_STATE_HOME/laplace/states, or ~/.local/state/laplace/states.
Path default_state_directory();
// The file of a name. Throws Error(kBadInput) unless it is 1 to 64 of A-Z a-z 0-9 _ -.
Path state_path(const Path& directory, std::string_view name);

}  // namespace laplace
