// Scores: both forms against each other over several pieces, and against the loss.
#include "eval/score.h"

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "support/golden.h"

namespace laplace {
namespace {

using testing::golden_path;

constexpr int32_t kVocab = 97;

Decoder open_tiny() {
  const Path directory = golden_path("tiny");
  return Decoder::open(directory, ModelConfig::load(directory), at::kFloat, at::kCPU);
}

std::vector<int32_t> some_ids(size_t count) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back(int32_t((i * i * 7 + i / 3) % kVocab));
  return ids;
}

at::Tensor row_of(const std::vector<int32_t>& ids) {
  return at::tensor(std::vector<int64_t>(ids.begin(), ids.end())).unsqueeze(0);
}

TEST(Score, ChunkedEqualsRecurrent) {
  const Decoder decoder = open_tiny();
  for (const size_t count : {2, 3, 17, 512, 513, 514, 1300}) {
    const std::vector<int32_t> ids = some_ids(count);
    const auto chunked = log_probs(decoder, ids, Form::kChunked);
    const auto recurrent = log_probs(decoder, ids, Form::kRecurrent);
    ASSERT_EQ(chunked.size(), count - 1);
    ASSERT_EQ(recurrent.size(), count - 1);
    for (size_t i = 0; i + 1 < count; ++i) {
      EXPECT_NEAR(chunked[i], recurrent[i], 1e-4) << i << " of " << count;
      EXPECT_LE(chunked[i], 0);
    }
  }
}

TEST(Score, SumIsTheLoss) {
  const Decoder decoder = open_tiny();
  const std::vector<int32_t> ids = some_ids(1100);
  const auto scores = log_probs(decoder, ids, Form::kChunked);
  const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
  const double loss = decoder.loss(row_of(ids), {}).item().toDouble();
  EXPECT_NEAR(-sum / double(scores.size()), loss, 1e-5);
}

TEST(Score, NothingBeforeTheFirstToken) {
  const Decoder decoder = open_tiny();
  EXPECT_TRUE(log_probs(decoder, {}, Form::kChunked).empty());
  EXPECT_TRUE(log_probs(decoder, some_ids(1), Form::kRecurrent).empty());
}

TEST(Score, RefusesIdsOutsideTheVocabulary) {
  const Decoder decoder = open_tiny();
  for (const int32_t id : {-1, kVocab}) {
    try {
      log_probs(decoder, std::vector<int32_t>{1, 2, id}, Form::kChunked);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("at place 3"));
      EXPECT_EQ(error.exit_code(), 2);
    }
  }
}

TEST(Score, StopsWhenAsked) {
  const Decoder decoder = open_tiny();
  const auto scores =
      log_probs(decoder, some_ids(2000), Form::kChunked, [](int64_t done) { return done < 600; });
  EXPECT_EQ(scores.size(), 2U * kScorePiece);
}

TEST(Score, Forms) {
  EXPECT_EQ(parse_form("chunked"), Form::kChunked);
  EXPECT_EQ(parse_form("recurrent"), Form::kRecurrent);
  EXPECT_THROW(parse_form("fast"), Error);
  EXPECT_DOUBLE_EQ(bits_per_byte(-8 * std::log(2.0), 4), 2);
}

}  // namespace
}  // namespace laplace
