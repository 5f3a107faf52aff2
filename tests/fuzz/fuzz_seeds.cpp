// Writes the sound files that the fuzzers mutate, and some that only a checksum's owner could
// write.
//
//   fuzz_seeds DIRECTORY TEXT
#include <cstdio>
#include <vector>

#include "base/error.h"
#include "data/shard.h"
#include "fuzz_model.h"
#include "serve/engine/state_file.h"
#include "text/bpe_train.h"

namespace laplace {

namespace {

void write_tokenizer(const Path& directory, const Path& text) {
  BpeTrainer trainer(1);
  trainer.add(read_file(text));
  trainer.train({.vocab_size = 300}).save(directory / "tokenizer");
}

void write_shards(const Path& directory) {
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  for (const int token_bytes : {2, 4}) {
    ShardWriter shard(directory / cat("shard", token_bytes, ".bin"), token_bytes);
    shard.append(ids);
    shard.commit();
  }
}

void write_states(const Path& directory) {
  const ModelConfig config = fuzz_config();
  SequenceSnapshot state;
  for (int64_t i = 0; i < config.state_bytes() / int64_t(sizeof(float)); ++i) {
    state.slot.push_back(float(i) / 8);
  }
  state.logits.assign(size_t(config.vocab_size), 0.5F);
  state.position = 7;
  const auto save = [&](const char* name, std::vector<TokenCount> counts) {
    state.counts = std::move(counts);
    save_state(directory / "states" / name, config, state, kFuzzFingerprint);
  };
  save("sound.safetensors", {{3, true, 0}, {12, false, 2}});
  save("none.safetensors", {});
  save("outside.safetensors", {{13, true, 1}});
  save("negative.safetensors", {{-1, true, 1}});
  save("twice.safetensors", {{3, true, 0}, {3, false, 1}});
}

}  // namespace

}  // namespace laplace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s DIRECTORY TEXT\n", argv[0]);
    return 2;
  }
  try {
    laplace::write_tokenizer(argv[1], argv[2]);
    laplace::write_shards(argv[1]);
    laplace::write_states(argv[1]);
  } catch (const laplace::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.exit_code();
  }
}
