// See run_log.h.
#include "train/run_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>

#include "base/error.h"
#include "base/json.h"

namespace laplace {

namespace {

// The lines of `text` that belong to the first `steps` steps; of a finished run without the last
// validation, which comes again.
std::string kept_lines(const std::string& text, int64_t steps, bool finished) {
  std::string kept;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    const int64_t step = json["step"].get<int64_t>();
    const bool comes_again = finished && step == steps && json.contains("val_loss");
    if (step <= steps && !comes_again) kept += line + "\n";
  }
  return kept;
}

// JSON has no NaN or infinity: null stands for them.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

}  // namespace

std::string training_line(const StepReport& r) {
  // Neither is negative; a NaN may be, and would be shown with its sign.
  std::string line = strf(
      "step %lld/%s | loss %.4f | grad %.3f | lr %.1e | %s tok/s", static_cast<long long>(r.step),
      r.total_steps > 0 ? std::to_string(r.total_steps).c_str() : "?", std::abs(r.loss),
      std::abs(r.grad_norm), r.lr, human_count(r.tokens_per_second).c_str());
  if (r.gemm_share > 0) line += strf(" | %.1f %% of GEMM limit", r.gemm_share * 100);
  if (r.total_steps > 0) line += " | " + human_duration(r.seconds_left) + " left";
  if (r.skipped) line += " | skipped: the gradient is not finite";
  return line;
}

RunLog::RunLog(const Path& run, int64_t steps, bool finished) : path_(run / "log.jsonl") {
  if (std::filesystem::exists(path_)) {
    write_file_atomic(path_, kept_lines(read_file(path_), steps, finished));
  }
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail_errno(cat("cannot write ", path_.string()));
}

RunLog::~RunLog() { ::close(descriptor_); }

void RunLog::append(const std::string& line) { write_fully(descriptor_, line + "\n", path_); }

void RunLog::step(const StepReport& r) {
  Json json;
  json["step"] = r.step;
  json["loss"] = number(r.loss);
  json["grad_norm"] = number(r.grad_norm);
  json["lr"] = r.lr;
  json["tokens"] = r.tokens;
  json["tokens_per_second"] = number(std::round(r.tokens_per_second * 10) / 10);
  json["gemm_share"] = number(std::round(r.gemm_share * 1e4) / 1e4);
  json["seconds"] = number(std::round(r.seconds * 1e3) / 1e3);
  if (r.skipped) json["skipped"] = true;
  append(to_line(json));
}

void RunLog::validation(int64_t step, const ValidationResult& result) {
  Json json;
  json["step"] = step;
  json["val_loss"] = number(result.loss);
  json["val_bits_per_byte"] = number(result.bits_per_byte);
  json["val_tokens"] = result.tokens;
  append(to_line(json));
}

}  // namespace laplace
