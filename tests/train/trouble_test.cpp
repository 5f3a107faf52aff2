// What goes wrong around a run costs nothing of it: it diverges, its data are damaged, its files
// are left half written; and what cannot end well is refused before it begins.
#include <gmock/gmock.h>

#include "base/error.h"
#include "model/model_directory.h"
#include "train/checkpoint.h"
#include "train/plan.h"
#include "train/trainer.h"
#include "train_support.h"

namespace laplace {
namespace {

using ::testing::HasSubstr;
using testing::logged_losses;
using testing::refusal;
using testing::ScratchDirectory;
using testing::tiny_training;

Path place_of(const TrainOptions& options, int64_t step) {
  return Path(options.out) / kCheckpointsName / checkpoint_name(step);
}

TEST(Trouble, ADivergedRunKeepsItsCheckpoints) {
  const ScratchDirectory scratch;
  TrainOptions options = tiny_training(scratch);
  options.steps = 6;
  options.checkpoint_every = 2;
  options.keep_checkpoints = 2;
  train(options, "");
  options.resume = true;
  options.steps = 200;
  options.checkpoint_every = 1;
  options.lr = options.adamw_lr = 1000;
  options.clip = 0;
  options.warmup = 0;
  options.weight_decay = 1000;
  EXPECT_THAT(refusal([&] { train(options, ""); }, 1), HasSubstr("20 steps in a row"));
  const auto log = logged_losses(options.out);
  const auto first_lost =
      std::ranges::find_if(log, [](double loss) { return !std::isfinite(loss); });
  ASSERT_NE(first_lost, log.end());
  const int64_t sound_steps = first_lost - log.begin();
  int64_t newest = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(Path(options.out) / kCheckpointsName)) {
    newest = std::max(newest, checkpoint_step(entry.path().filename().string()));
  }
  EXPECT_LE(newest, sound_steps) << "a checkpoint of steps that were skipped";
  EXPECT_EQ(int64_t(log.size()), sound_steps + 20) << "a skipped step is not in the log";
}

TEST(Trouble, ADamagedShardCostsNoSteps) {
  const ScratchDirectory scratch;
  TrainOptions options = tiny_training(scratch);
  options.steps = 400;
  options.checkpoint_every = 0;
  const Path shard = Path(options.data) / "train_000000.bin";
  std::string bytes = read_file(shard);
  bytes[bytes.size() / 2 | 1] = char(0xff);  // a token beyond the vocabulary
  write_file_atomic(shard, bytes);
  EXPECT_THAT(refusal([&] { train(options, ""); }), HasSubstr("train_000000.bin"));
  const auto done = int64_t(logged_losses(options.out).size());
  ASSERT_GT(done, 0);
  EXPECT_TRUE(std::filesystem::exists(place_of(options, done)));
}

TEST(Trouble, RefusesATokenizerThatDidNotMakeTheShards) {
  const ScratchDirectory scratch;
  const TrainOptions options = tiny_training(scratch);
  const Path file = Path(options.data) / "tokenizer.json";
  write_file_atomic(file, "{\"x\": 1}");
  EXPECT_THAT(refusal([&] { train(options, ""); }), HasSubstr("tokenizer.json"));
  const std::vector<std::pair<TokenId, TokenId>> merges = {{0, 1}};
  Tokenizer::from_merges(merges, {}).save(options.data);
  EXPECT_THAT(refusal([&] { train(options, ""); }), HasSubstr("made the shards"));
  EXPECT_FALSE(std::filesystem::exists(options.out));
}

TEST(Trouble, RefusesShardsWhoseEndOfTextIsNoTokenOfTheModel) {
  const ScratchDirectory scratch;
  const TrainOptions options = tiny_training(scratch);
  std::filesystem::remove(Path(options.data) / kDatasetFile);
  EXPECT_THAT(refusal([&] { train(options, ""); }), HasSubstr("50256"));
  EXPECT_FALSE(std::filesystem::exists(options.out));
}

TEST(Trouble, RefusesCheckpointsThatCannotBeRead) {
  const ScratchDirectory scratch;
  TrainOptions options = tiny_training(scratch);
  train(options, "");
  const Path checkpoints = Path(options.out) / kCheckpointsName, away = scratch / "away";
  std::filesystem::rename(checkpoints, away);
  std::filesystem::create_symlink(scratch / "not-mounted", checkpoints);
  const std::vector<double> losses = logged_losses(options.out);
  options.resume = true;
  EXPECT_THAT(refusal([&] { train(options, ""); }), HasSubstr("cannot read"));
  EXPECT_EQ(logged_losses(options.out), losses);
}

TEST(Trouble, WhatAKilledProcessLeftIsPutRight) {
  const ScratchDirectory scratch;
  TrainOptions options = tiny_training(scratch);
  train(options, "");
  const Path checkpoints = Path(options.out) / kCheckpointsName;
  const Path left = checkpoints / cat(".", checkpoint_name(9), ".tmp");
  std::filesystem::create_directories(left);
  write_file_atomic(left / "model.safetensors", "half");
  write_file_atomic(checkpoints / kLatestName, checkpoint_name(8) + "\n");
  options.resume = true;
  train(options, "");
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_EQ(open_model_directory(options.out).filename(), checkpoint_name(12));
  const std::string log = read_file(Path(options.out) / "log.jsonl");
  EXPECT_EQ(log.find("val_loss"), log.rfind("val_loss"))
      << "the last validation stands there twice";
}

TEST(Plan, TheWarmUpIsWhatWasAsked) {
  TrainOptions options;
  options.steps = 10;
  options.warmup = 1000;
  EXPECT_THAT(refusal([&] { (void)schedule_of(options, 10, 1); }), HasSubstr("--warmup"));
  options.steps = 0;
  options.minutes = 1;
  EXPECT_EQ(schedule_of(options, 10, 1).warmup, 10);
  EXPECT_EQ(schedule_of(options, 0, 1).warmup, 1000);
  options.warmup = 5;
  EXPECT_EQ(schedule_of(options, 100, 1).warmup, 5);
  options.warmup = 0;
  EXPECT_EQ(schedule_of(options, 100, 1).warmup, 0);
  options.warmup = 0.5;
  EXPECT_EQ(schedule_of(options, 2000, 1).warmup, 1000);
  EXPECT_EQ(schedule_of(options, 20, 1).warmup, kCalibrationSteps);
}

// With a guess from the first step on, the rate rises once and does not fall back.
TEST(Plan, ATimeBudgetsRateRisesOnce) {
  const ScratchDirectory scratch;
  TrainOptions options = tiny_training(scratch);
  options.steps = 0;
  options.minutes = 0.05;
  options.schedule = "constant";
  options.warmup = 40;
  train(options, "");
  std::istringstream log(read_file(Path(options.out) / "log.jsonl"));
  double before = 0;
  for (std::string line; std::getline(log, line);) {
    const Json json = parse_json(line, "log.jsonl");
    if (!json.contains("lr")) continue;
    EXPECT_GE(json["lr"].get<double>(), before) << line;
    before = json["lr"].get<double>();
  }
  EXPECT_EQ(before, options.lr);
}

TEST(Plan, AFinishedRunGoesOnWithMoreTime) {
  const ScratchDirectory scratch;
  TrainOptions options = tiny_training(scratch);
  options.steps = 0;
  options.minutes = 0.01;
  const int64_t steps = train(options, "").steps;
  options.resume = true;
  EXPECT_EQ(train(options, "").steps, steps);
  options.minutes = 0.05;
  EXPECT_GT(train(options, "").steps, steps);
}

}  // namespace
}  // namespace laplace
