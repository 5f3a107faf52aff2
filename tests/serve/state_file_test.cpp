// States in files: a sequence goes on bit for bit, and nothing but an undamaged state of the same
// model is accepted.
#include "serve/engine/state_file.h"

#include <gmock/gmock.h>

#include <fstream>

#include "base/error.h"
#include "engine_support.h"
#include "serve/engine/model_fingerprint.h"
#include "serve_support.h"
#include "support/scratch.h"

namespace laplace {
namespace {

using testing::byte_tokenizer;
using testing::golden_path;
using testing::kTinyEndOfText;
using testing::Listener;
using testing::same;
using testing::ScratchDirectory;

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2) << error.what();
    return error.what();
  }
  return "nothing was thrown";
}

std::string fingerprint_of(const std::string& model) {
  const Path directory = golden_path(model);
  return model_fingerprint(directory, ModelConfig::load(directory));
}

// A request on the tiny model, and what it gave.
std::shared_ptr<Listener> run(const Request& request) {
  const Path directory = golden_path("tiny");
  EngineOptions options;
  options.slots = 2;
  options.threads = 1;
  options.quiet = true;
  options.dtype = EngineDtype::kFloat32;
  const ModelConfig config = ModelConfig::load(directory);
  const auto engine = Engine::open(directory, {config, byte_tokenizer(), kTinyEndOfText}, options);
  auto listener = std::make_shared<Listener>();
  engine->submit(request, listener);
  listener->wait(1);
  return listener;
}

class StateFile : public ::testing::Test {
 protected:
  StateFile() {
    Request request = base_request();
    request.prompt = {kTinyEndOfText, 4, 8, 15};
    request.max_tokens = 30;
    state_ = run(request)->heard[0].last_snapshot;
    save_state(path_, config_, *state_, fingerprint_);
  }

  static Request base_request() {
    Request request;
    request.sampling.seed = 42;
    request.sampling.repetition_penalty = 1.3;
    request.sampling.presence_penalty = 0.2;
    request.ignore_end_of_text = true;
    request.max_tokens = 50;
    request.top_log_probs = 5;
    request.snapshot_at_end = true;
    return request;
  }

  ScratchDirectory scratch_;
  Path path_ = scratch_ / "a" / "b.safetensors";  // the directory is made
  ModelConfig config_ = ModelConfig::load(golden_path("tiny"));
  std::shared_ptr<const SequenceSnapshot> state_;
  std::string fingerprint_ = fingerprint_of("tiny");
};

TEST_F(StateFile, GoesOnBitForBit) {
  const auto loaded = load_state(path_, config_, fingerprint_);
  EXPECT_EQ(loaded->position, 34);
  EXPECT_TRUE(same(*loaded, *state_));
  Request request = base_request();
  request.from = state_;
  const auto live = run(request);
  request.from = loaded;
  const auto resumed = run(request);
  EXPECT_TRUE(same(live->heard[0].tokens, resumed->heard[0].tokens));
  EXPECT_TRUE(same(*live->heard[0].last_snapshot, *resumed->heard[0].last_snapshot));
  EXPECT_EQ(resumed->heard[0].last_snapshot->position, 84);
  EXPECT_EQ(resumed->heard[0].finishes[0].cached_tokens, 34);
}

TEST_F(StateFile, OfAnotherModelIsRefused) {
  EXPECT_NE(fingerprint_of("tiny_bf16"), fingerprint_);
  EXPECT_EQ(fingerprint_of("tiny"), fingerprint_);
  EXPECT_THAT(message_of([&] { load_state(path_, config_, fingerprint_of("tiny_bf16")); }),
              ::testing::HasSubstr("another model"));
}

TEST_F(StateFile, EveryDamageIsRefused) {
  const std::string good = read_file(path_);
  const Path bad = scratch_ / "bad.safetensors";
  const auto refused = [&](const std::string& bytes) {
    write_file_atomic(bad, bytes);
    return message_of([&] { load_state(bad, config_, fingerprint_); });
  };
  const auto names_file = ::testing::HasSubstr("bad.safetensors");
  for (size_t at = 0; at < good.size(); at += 11) {
    std::string bytes = good;
    bytes[at] = char(bytes[at] ^ 1);
    EXPECT_THAT(refused(bytes), names_file) << at;
  }
  for (size_t size = 0; size < good.size(); size += 997) {
    EXPECT_THAT(refused(good.substr(0, size)), names_file) << size;
  }
  EXPECT_THAT(refused(good + "x"), names_file);
  EXPECT_THAT(message_of([&] { load_state(scratch_ / "none", config_, fingerprint_); }),
              ::testing::HasSubstr("none"));
  // A model is not a state.
  const Path model = golden_path("tiny") / "model.safetensors";
  EXPECT_THAT(message_of([&] { load_state(model, config_, fingerprint_); }),
              ::testing::HasSubstr("not a saved state"));
}

TEST(StatePath, Names) {
  EXPECT_EQ(state_path("d", "my-chat_2"), Path("d/my-chat_2.safetensors"));
  const std::string longest(64, 'x');
  EXPECT_NO_THROW(state_path("d", longest));
  for (const std::string& name :
       {std::string(), std::string("."), std::string("../x"), std::string("a/b"), longest + "x",
        std::string("a b"), std::string("\xC3\xA9"), std::string("a\0b", 3)}) {
    EXPECT_THROW(state_path("d", name), Error) << name;
  }
}

}  // namespace
}  // namespace laplace
