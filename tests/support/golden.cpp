// See golden.h.
#include "support/golden.h"

#include <cmath>
#include <limits>

#include "base/json.h"

namespace laplace::testing {

namespace {

std::string full_name(const std::string& test_case, const std::string& name) {
  return test_case.empty() ? name : test_case + "." + name;
}

struct Errors {
  double max = std::numeric_limits<double>::infinity();
  double rms = std::numeric_limits<double>::infinity();
};

Errors compare(const at::Tensor& x, const at::Tensor& ref) {
  if (x.sizes() != ref.sizes()) return {};
  const at::Tensor a = x.detach().to(at::kCPU).to(at::kDouble).contiguous();
  const at::Tensor b = ref.detach().to(at::kCPU).to(at::kDouble).contiguous();
  const auto* const got = a.const_data_ptr<double>();
  const auto* const want = b.const_data_ptr<double>();
  const int64_t count = a.numel();
  double largest = 0;
  double difference_squares = 0;
  double reference_squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double difference = std::abs(got[i] - want[i]);
    if (!std::isfinite(difference)) return {};
    largest = std::max(largest, difference);
    difference_squares += difference * difference;
    reference_squares += want[i] * want[i];
  }
  if (reference_squares == 0) return largest < 1e-12 ? Errors{0, 0} : Errors{};
  const double reference = std::sqrt(reference_squares / double(count));
  return {largest / reference, std::sqrt(difference_squares / double(count)) / reference};
}

}  // namespace

Path golden_path(const std::string& name) {
  return Path(LAPLACE_SOURCE_DIR) / "tests" / "data" / "golden" / name;
}

std::map<std::string, std::string> GoldenFile::descriptions() const {
  const auto text = file_.metadata().find("cases");
  if (text == file_.metadata().end()) return {};
  return parse_json(text->second, file_.path().string());
}

std::vector<std::string> GoldenFile::cases() const {
  std::vector<std::string> out;
  for (const auto& [name, text] : descriptions()) out.push_back(name);
  return out;
}

std::string GoldenFile::description(const std::string& test_case) const {
  return descriptions()[test_case];
}

at::Tensor GoldenFile::tensor(const std::string& test_case, const std::string& name) const {
  return file_.tensor(full_name(test_case, name)).clone();
}

std::optional<at::Tensor> GoldenFile::optional(const std::string& test_case,
                                               const std::string& name) const {
  if (!file_.contains(full_name(test_case, name))) return std::nullopt;
  return tensor(test_case, name);
}

double GoldenFile::number(const std::string& test_case, const std::string& name) const {
  return tensor(test_case, name).item().toDouble();
}

int64_t GoldenFile::integer(const std::string& test_case, const std::string& name) const {
  return tensor(test_case, name).item().toLong();
}

double max_error(const at::Tensor& x, const at::Tensor& ref) { return compare(x, ref).max; }

double rms_error(const at::Tensor& x, const at::Tensor& ref) { return compare(x, ref).rms; }

}  // namespace laplace::testing
