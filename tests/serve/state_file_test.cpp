// States in files: a sequence goes on bit for bit, and nothing but an undamaged state of the same
// model is accepted.
#include "serve/engine/state_file.h"

#include <gmock/gmock.h>

#include <fstream>

#include "base/error.h"
#include "serve_support.h"
#include "support/scratch.h"

namespace laplace {
namespace {

using testing::golden_path;
using testing::kTinyEndOfText;
using testing::kTinyVocab;
using testing::open_tiny;
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

class StateFile : public ::testing::Test {
 protected:
  StateFile() {
    generator_.prefill(std::vector<TokenId>{kTinyEndOfText, 4, 8, 15});
    for (int i = 0; i < 30; ++i) generator_.feed(generator_.pick(params()));
    save_state(path_, generator_.snapshot(), fingerprint_);
  }

  static SamplingParams params() {
    SamplingParams params;
    params.seed = 42;
    params.repetition_penalty = 1.3;
    params.presence_penalty = 0.2;
    return params;
  }

  ScratchDirectory scratch_;
  Path path_ = scratch_ / "a" / "b.safetensors";  // the directory is made
  Decoder decoder_ = open_tiny();
  Generator generator_{decoder_, kTinyVocab};
  std::string fingerprint_ = fingerprint_of("tiny");
};

TEST_F(StateFile, GoesOnBitForBit) {
  const SequenceState loaded = load_state(path_, decoder_, fingerprint_);
  EXPECT_EQ(loaded.position, 34);
  Generator other(decoder_, kTinyVocab);
  other.restore(loaded);
  for (int i = 0; i < 50; ++i) {
    ASSERT_THAT(other.logits(), ::testing::ElementsAreArray(generator_.logits()));
    const TokenId id = generator_.pick(params());
    ASSERT_EQ(other.pick(params()), id);
    generator_.feed(id);
    other.feed(id);
  }
}

TEST_F(StateFile, OfAnotherModelIsRefused) {
  EXPECT_NE(fingerprint_of("tiny_bf16"), fingerprint_);
  EXPECT_EQ(fingerprint_of("tiny"), fingerprint_);
  EXPECT_THAT(message_of([&] { load_state(path_, decoder_, fingerprint_of("tiny_bf16")); }),
              ::testing::HasSubstr("another model"));
}

TEST_F(StateFile, EveryDamageIsRefused) {
  const std::string good = read_file(path_);
  const Path bad = scratch_ / "bad.safetensors";
  const auto refused = [&](const std::string& bytes) {
    write_file_atomic(bad, bytes);
    return message_of([&] { load_state(bad, decoder_, fingerprint_); });
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
  EXPECT_THAT(message_of([&] { load_state(scratch_ / "none", decoder_, fingerprint_); }),
              ::testing::HasSubstr("none"));
  // A model is not a state.
  const Path model = golden_path("tiny") / "model.safetensors";
  EXPECT_THAT(message_of([&] { load_state(model, decoder_, fingerprint_); }),
              ::testing::HasSubstr("not a saved state"));
}

TEST_F(StateFile, NothingToSave) {
  const Generator fresh(decoder_, kTinyVocab);
  EXPECT_THAT(message_of([&] { save_state(path_, fresh.snapshot(), fingerprint_); }),
              ::testing::HasSubstr("nothing to save"));
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
