// See text_stream.h.
#include "serve/engine/text_stream.h"

#include <algorithm>

#include "base/error.h"
#include "text/unicode.h"

namespace laplace {

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) fail_input("a stop string is empty; leave it out");
    // Generated text is UTF-8, so this one could never come; half a character must not be held.
    if (!is_valid_utf8(stop))
      fail_input("the stop string ", laplace::quoted(stop), " is not UTF-8");
  }
}

std::string StopFilter::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  size_t first_end = std::string::npos, start = 0;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    const size_t end = at + stop.size();
    if (end < first_end || (end == first_end && at < start)) {
      first_end = end, start = at;
      matched_ = stop;
    }
  }
  if (first_end != std::string::npos) {
    stopped_ = true;
    std::string out = held_.substr(0, start);
    held_.clear();
    return out;
  }
  // The longest end of the text that is a beginning of a stop string stays here.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) keep = n;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopFilter::finish() {
  std::string out;
  if (!stopped_) out = std::move(held_);
  held_.clear();
  stopped_ = false;
  return out;
}

std::string TextStream::finish() {
  const bool stopped = filter_.stopped();
  std::string out = filter_.push(decoder_.finish());
  // U+FFFD may itself complete a stop string.
  const std::string rest = filter_.finish();
  return stopped ? std::string() : out + rest;
}

}  // namespace laplace
