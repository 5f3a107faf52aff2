// The table of parameters against the golden checkpoint and the published counts, and the initial
// values: their distribution, and that nothing but (seed, name, element) decides them.
#include "model/parameters.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "model/safetensors.h"
#include "support/golden.h"

namespace laplace {
namespace {

using ::testing::ElementsAre;
using testing::golden_path;

ModelConfig config_of(const std::string& name) {
  return ModelConfig::load(Path(LAPLACE_SOURCE_DIR) / "configs" / (name + ".json"));
}

const ParameterSpec& find(const std::vector<ParameterSpec>& table, const std::string& name) {
  return *std::find_if(table.begin(), table.end(), [&](const auto& p) { return p.name == name; });
}

at::Tensor initial(const ParameterSpec& spec, const ModelConfig& config, uint64_t seed) {
  at::Tensor out = at::empty(spec.shape, at::kFloat);
  init_parameter(spec, config, seed, out);
  return out;
}

struct Moments {
  double mean = 0;
  double deviation = 0;
  double kurtosis = 0;  // 3 for a normal distribution, 1.8 for a uniform one
};

Moments moments(const at::Tensor& values) {
  const auto* const x = values.const_data_ptr<float>();
  const auto n = values.numel();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  Moments m{.mean = sum / double(n)};
  double second = 0;
  double fourth = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double square = (x[i] - m.mean) * (x[i] - m.mean);
    second += square;
    fourth += square * square;
  }
  m.deviation = std::sqrt(second / double(n));
  m.kurtosis = fourth / double(n) / std::pow(m.deviation, 4);
  return m;
}

TEST(ParametersTest, TableIsTheGoldenCheckpoints) {
  const SafetensorsFile file(golden_path("tiny/model.safetensors"));
  const auto table = parameter_table(ModelConfig::load(golden_path("tiny")));
  EXPECT_EQ(table.size(), file.tensors().size());
  for (const ParameterSpec& spec : table) EXPECT_EQ(file.info(spec.name).shape, spec.shape);
}

TEST(ParametersTest, CountsAgreeWithTheConfiguration) {
  for (const char* name : {"tiny", "demo", "laplace-160m", "laplace-350m", "laplace-3b"}) {
    const ModelConfig config = config_of(name);
    int64_t muon = 0;
    int64_t adamw = 0;
    std::set<std::string> names;
    for (const ParameterSpec& spec : parameter_table(config)) {
      (spec.role == ParameterRole::kMuon ? muon : adamw) += spec.numel();
      EXPECT_EQ(spec.block_rows.back(), spec.rows()) << spec.name;
      EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
    }
    EXPECT_EQ(muon, config.muon_parameters());
    EXPECT_EQ(adamw, config.adamw_parameters());
  }
}

TEST(ParametersTest, Laplace3bHas96MuonMatrices) {
  const auto table = parameter_table(config_of("laplace-3b"));
  EXPECT_EQ(std::count_if(table.begin(), table.end(),
                          [](const auto& p) { return p.role == ParameterRole::kMuon; }),
            96);
  EXPECT_EQ(table.front().name, "embed.weight");
  EXPECT_EQ(table.back().name, "head.weight");
  const ParameterSpec& qkvg = find(table, "layers.23.qkvg.weight");
  EXPECT_THAT(qkvg.shape, ElementsAre(9216, 3072));
  EXPECT_THAT(qkvg.block_rows, ElementsAre(1536, 3072, 6144, 9216));
  EXPECT_EQ(qkvg.layer, 23);
  const ParameterSpec& gate_up = find(table, "layers.0.gate_up.weight");
  EXPECT_THAT(gate_up.shape, ElementsAre(16384, 3072));
  EXPECT_THAT(gate_up.block_rows, ElementsAre(8192, 16384));
}

TEST(ParametersTest, InitialValuesHaveTheirDistribution) {
  const ModelConfig config = config_of("demo");
  const auto table = parameter_table(config);
  const auto expect = [&](const char* name, double deviation, double kurtosis) {
    SCOPED_TRACE(name);
    const Moments m = moments(initial(find(table, name), config, 1));
    const double n = double(find(table, name).numel());
    EXPECT_LT(std::abs(m.mean), 5 * deviation / std::sqrt(n));
    EXPECT_LT(std::abs(m.deviation / deviation - 1), 5 / std::sqrt(n));
    EXPECT_LT(std::abs(m.kurtosis - kurtosis), 25 / std::sqrt(n));
  };
  const double residual = 0.02 / std::sqrt(2.0 * double(config.num_hidden_layers));
  expect("embed.weight", 0.02, 3);
  expect("head.weight", 0.02, 3);
  expect("layers.3.qkvg.weight", 0.02, 3);
  expect("layers.3.gate_up.weight", 0.02, 3);
  expect("layers.3.out.weight", residual, 3);
  expect("layers.3.down.weight", residual, 3);
  expect("layers.3.conv.weight", 0.5 / std::sqrt(3.0), 1.8);
  const at::Tensor conv = initial(find(table, "layers.0.conv.weight"), config, 1);
  EXPECT_LT(conv.abs().max().item().toDouble(), 0.5);
  for (const char* name : {"norm.weight", "layers.0.attn_norm.weight", "layers.0.mlp_norm.weight",
                           "layers.0.head_norm.weight"}) {
    EXPECT_TRUE(initial(find(table, name), config, 1).eq(1).all().item().toBool()) << name;
  }
  EXPECT_TRUE(initial(find(table, "layers.0.aug_balance"), config, 1).eq(0).all().item().toBool());
}

TEST(ParametersTest, InitialValuesDifferBySeedAndName) {
  const ModelConfig config = config_of("tiny");
  const auto table = parameter_table(config);
  const at::Tensor a = initial(find(table, "layers.0.qkvg.weight"), config, 1);
  EXPECT_TRUE(at::equal(a, initial(find(table, "layers.0.qkvg.weight"), config, 1)));
  EXPECT_FALSE(at::equal(a, initial(find(table, "layers.0.qkvg.weight"), config, 2)));
  EXPECT_FALSE(at::equal(a, initial(find(table, "layers.1.qkvg.weight"), config, 1)));
  // Neither neighbours nor the two parameters' elements at the same place go together.
  const at::Tensor b = initial(find(table, "layers.1.qkvg.weight"), config, 1);
  const double scale = 0.02 * 0.02;
  const double bound = 5 / std::sqrt(double(a.numel()));
  EXPECT_LT(std::abs(a.mul(b).mean().item().toDouble() / scale), bound);
  const at::Tensor flat = a.flatten();
  const int64_t n = flat.numel();
  const at::Tensor shifted = flat.narrow(0, 0, n - 1).mul(flat.narrow(0, 1, n - 1));
  EXPECT_LT(std::abs(shifted.mean().item().toDouble() / scale), bound);
}

TEST(ParametersTest, RowsOfAShardAreRowsOfTheWhole) {
  ModelConfig config = config_of("demo");
  config.head_k_dim = 33;  // rows of odd length below
  for (const ParameterSpec& spec : parameter_table(config)) {
    if (spec.layer > 0) continue;
    const at::Tensor whole = initial(spec, config, 5);
    const int64_t shard = (spec.rows() + 2) / 3;
    for (int64_t first = 0; first < spec.rows(); first += shard) {
      const int64_t rows = std::min(shard, spec.rows() - first);
      auto shape = spec.shape;
      shape[0] = rows;
      at::Tensor out = at::empty(shape, at::kFloat);
      init_parameter(spec, config, 5, out, first);
      EXPECT_TRUE(at::equal(out, whole.narrow(0, first, rows))) << spec.name << " " << first;
    }
    auto none = spec.shape;
    none[0] = 0;
    init_parameter(spec, config, 5, at::empty(none, at::kFloat), spec.rows());  // an empty shard
  }
}

TEST(ParametersTest, ThreadsDoNotMatter) {
  const ModelConfig config = config_of("demo");
  const auto table = parameter_table(config);
  const ParameterSpec& spec = find(table, "embed.weight");
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = initial(spec, config, 3);
  at::set_num_threads(3);
  EXPECT_TRUE(at::equal(alone, initial(spec, config, 3)));
  at::set_num_threads(threads);
}

TEST(ParametersTest, RefusesTensorsThatDoNotFit) {
  const ModelConfig config = config_of("tiny");
  const auto table = parameter_table(config);
  const ParameterSpec& spec = find(table, "embed.weight");
  const auto init = [&](const at::Tensor& out, int64_t row) {
    init_parameter(spec, config, 1, out, row);
  };
  EXPECT_THROW(init(at::Tensor(), 0), Error);
  EXPECT_THROW(init(at::empty({512, 63}, at::kFloat), 0), Error);
  EXPECT_THROW(init(at::empty({512, 64}, at::kBFloat16), 0), Error);
  EXPECT_THROW(init(at::empty({64, 512}, at::kFloat).t(), 0), Error);
  EXPECT_THROW(init(at::empty({512, 64}, at::kFloat), 1), Error);
  EXPECT_THROW(init(at::empty({512, 64}, at::kFloat), -1), Error);
}

}  // namespace
}  // namespace laplace
