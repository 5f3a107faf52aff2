// A run that stops and resumes is the unbroken run, bit for bit; damaged checkpoints fall back;
// what does not belong to a run is refused before anything is overwritten.
#include "train/checkpoint.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "model/model_directory.h"
#include "train/trainer.h"
#include "train_support.h"

namespace laplace {
namespace {

using ::testing::HasSubstr;
using testing::logged_losses;
using testing::refusal;
using testing::ScratchDirectory;
using testing::tiny_training;

class Resume : public ::testing::TestWithParam<const char*> {};

TEST_P(Resume, ContinuesBitForBit) {
  const ScratchDirectory scratch;
  TrainOptions options = tiny_training(scratch);
  options.dtype = GetParam();
  const TrainResult whole = train(options, "# whole\n");
  const std::vector<double> losses = logged_losses(options.out);
  ASSERT_EQ(losses.size(), 12);
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_GT(whole.validation.bits_per_byte, 0);

  TrainOptions broken = options;
  broken.out = (scratch / "broken").string();
  broken.resume = true;
  train(broken, "");
  // As after a kill behind step 8: later checkpoints and log lines are gone or half written.
  std::filesystem::remove_all(Path(broken.out) / kCheckpointsName / checkpoint_name(12));
  write_file_atomic(Path(broken.out) / "log.jsonl",
                    read_file(Path(broken.out) / "log.jsonl") + "{\"step\": 12, \"lo");
  train(broken, "");
  EXPECT_EQ(logged_losses(broken.out), losses);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const auto read = [&](const std::string& run) {
      return read_file(Path(run) / kCheckpointsName / checkpoint_name(12) / file);
    };
    EXPECT_TRUE(read(options.out) == read(broken.out)) << file;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Resume, ::testing::Values("float32", "bfloat16"));

TEST(Checkpoint, FallsBackToTheOneBeforeADamagedOne) {
  const ScratchDirectory scratch;
  TrainOptions options = tiny_training(scratch);
  train(options, "");
  const std::vector<double> losses = logged_losses(options.out);
  const Path newest = Path(options.out) / kCheckpointsName / checkpoint_name(12);
  std::filesystem::resize_file(newest / "model.safetensors", 1000);
  EXPECT_EQ(open_model_directory(options.out).filename(), checkpoint_name(8));
  options.resume = true;
  train(options, "");
  EXPECT_EQ(logged_losses(options.out), losses);
  EXPECT_EQ(open_model_directory(options.out).filename(), checkpoint_name(12));
}

TEST(Checkpoint, FallsBackFromFlippedBits) {
  const ScratchDirectory scratch;
  TrainOptions options = tiny_training(scratch);
  train(options, "");
  const std::vector<double> losses = logged_losses(options.out);
  const Path file =
      Path(options.out) / kCheckpointsName / checkpoint_name(12) / "model.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() / 2] ^= 1;
  write_file_atomic(file, bytes);
  options.resume = true;
  train(options, "");
  EXPECT_EQ(logged_losses(options.out), losses);
}

// Cuts the weights of a checkpoint short.
void damage(const TrainOptions& options, int64_t step) {
  std::filesystem::resize_file(
      Path(options.out) / kCheckpointsName / checkpoint_name(step) / "model.safetensors", 1000);
}

TEST(Checkpoint, FlippedBitsAreRepairedByTheRunThatGetsThereAgain) {
  const ScratchDirectory scratch;
  TrainOptions options = tiny_training(scratch);
  train(options, "");
  const Path newest = Path(options.out) / kCheckpointsName / checkpoint_name(12);
  std::string bytes = read_file(newest / "model.safetensors");
  bytes[bytes.size() / 2] ^= 1;
  write_file_atomic(newest / "model.safetensors", bytes);
  ASSERT_NE(manifest_problem(newest, true), "");
  options.resume = true;
  train(options, "");
  EXPECT_EQ(manifest_problem(newest, true), "");
}

// Damaged checkpoints do not count among those that are kept, nor drive out the one just written.
TEST(Checkpoint, DamagedOnesDriveOutNone) {
  for (const int64_t keep : {1, 2}) {
    const ScratchDirectory scratch;
    TrainOptions options = tiny_training(scratch);
    options.keep_checkpoints = 3;
    train(options, "");
    damage(options, 12);
    damage(options, 8);
    options.resume = true;
    options.steps = 6;
    options.checkpoint_every = 1;
    options.keep_checkpoints = keep;
    train(options, "");
    EXPECT_EQ(open_model_directory(options.out).filename(), checkpoint_name(6));
    const Path checkpoints = Path(options.out) / kCheckpointsName;
    EXPECT_EQ(std::filesystem::exists(checkpoints / checkpoint_name(5)), keep == 2);
    EXPECT_FALSE(std::filesystem::exists(checkpoints / checkpoint_name(4)));
  }
}

TEST(Checkpoint, RefusesToTrainOverDamagedOnes) {
  const ScratchDirectory scratch;
  TrainOptions options = tiny_training(scratch);
  options.keep_checkpoints = 2;
  train(options, "");
  const std::vector<double> losses = logged_losses(options.out);
  damage(options, 12);
  damage(options, 8);
  options.resume = true;
  EXPECT_THAT(refusal([&] { train(options, ""); }), HasSubstr("no checkpoint of"));
  EXPECT_EQ(logged_losses(options.out), losses);
}

TEST(Checkpoint, KeepsTheNewest) {
  const ScratchDirectory scratch;
  TrainOptions options = tiny_training(scratch);
  options.keep_checkpoints = 2;
  train(options, "");
  const Path checkpoints = Path(options.out) / kCheckpointsName;
  EXPECT_FALSE(std::filesystem::exists(checkpoints / checkpoint_name(4)));
  EXPECT_TRUE(std::filesystem::exists(checkpoints / checkpoint_name(8)));
  EXPECT_TRUE(std::filesystem::exists(checkpoints / checkpoint_name(12)));
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints)) {
    EXPECT_NE(entry.path().extension(), ".tmp");
  }
}

TEST(Checkpoint, RefusesWhatIsNotThisRun) {
  const ScratchDirectory scratch;
  TrainOptions options = tiny_training(scratch);
  options.steps = 4;
  train(options, "");
  EXPECT_THAT(refusal([&] { train(options, ""); }), HasSubstr("--resume"));
  options.resume = true;
  TrainOptions other = options;
  other.batch = 2;
  EXPECT_THAT(refusal([&] { train(other, ""); }), HasSubstr("--batch"));
  other = options;
  other.seed = 5;
  EXPECT_THAT(refusal([&] { train(other, ""); }), HasSubstr("--seed"));
  other = options;
  Json config = load_json(options.config);
  config["intermediate_size"] = 64;
  write_file_atomic(scratch / "other.json", to_text(config));
  other.config = (scratch / "other.json").string();
  EXPECT_THAT(refusal([&] { train(other, ""); }), HasSubstr("config"));
}

// The shares of the schedule are of steps that are known only once the machine's speed is.
TEST(Train, ATimeBudgetOfFewStepsHasRoomForItsDecay) {
  const ScratchDirectory scratch;
  TrainOptions options = tiny_training(scratch);
  options.steps = 0;
  options.minutes = 0.001;
  options.schedule = "wsd";
  options.warmup = 0.05;
  options.decay = 0.9;
  EXPECT_GE(train(options, "").steps, 5);
}

TEST(Train, RefusesBeforeAnythingIsWritten) {
  const ScratchDirectory scratch;
  TrainOptions options = tiny_training(scratch);
  TrainOptions bad = options;
  bad.schedule = "cosin";
  EXPECT_THAT(refusal([&] { train(bad, ""); }), HasSubstr("cosine"));
  bad = options;
  bad.schedule = "wsd";
  bad.warmup = 10;
  bad.decay = 10;
  EXPECT_THAT(refusal([&] { train(bad, ""); }), HasSubstr("--decay"));
  EXPECT_FALSE(std::filesystem::exists(options.out));
  std::filesystem::create_directories(options.out);
  write_file_atomic(Path(options.out) / "recipe.toml", "# mine\n");
  EXPECT_THAT(refusal([&] { train(options, ""); }), HasSubstr("recipe.toml"));
  EXPECT_EQ(read_file(Path(options.out) / "recipe.toml"), "# mine\n");
  const FileLock lock(Path(options.out) / ".lock", "");
  options.resume = true;
  EXPECT_THAT(refusal([&] { train(options, ""); }), HasSubstr("another process"));
  EXPECT_EQ(read_file(Path(options.out) / "recipe.toml"), "# mine\n");
}

TEST(Train, RefusesSettingsThatMakeNoSense) {
  const ScratchDirectory scratch;
  const TrainOptions good = tiny_training(scratch);
  const auto with = [&](auto change) {
    TrainOptions options = good;
    change(options);
    return refusal([&] { train(options, ""); });
  };
  EXPECT_THAT(with([](auto& o) { o.micro_batch = 3; }), HasSubstr("--micro-batch"));
  EXPECT_THAT(with([](auto& o) { o.steps = 0; }), HasSubstr("budget"));
  EXPECT_THAT(with([](auto& o) { o.minutes = 1; }), HasSubstr("budget"));
  EXPECT_THAT(with([](auto& o) { o.lr = -1; }), HasSubstr("--lr"));
  EXPECT_THAT(with([](auto& o) { o.dtype = "float16"; }), HasSubstr("bfloat16"));
  EXPECT_THAT(with([](auto& o) { o.newton_schulz = "simpel"; }), HasSubstr("simple"));
  EXPECT_THAT(with([](auto& o) { o.data = "/nowhere"; }), HasSubstr("/nowhere"));
  EXPECT_FALSE(std::filesystem::exists(good.out));
}

}  // namespace
}  // namespace laplace
