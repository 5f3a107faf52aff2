// Messages for people, on stderr: one line each, with a level. Results go to stdout, never here.
// Thread-safe. spdlog sits behind this face, because its fmt clashes with the one LibTorch ships.
#pragma once

#include <string>
#include <string_view>

#include "base/strings.h"

namespace laplace {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void set_log_level(LogLevel level);
void log_message(LogLevel level, std::string_view message);

template <class... Parts>
void log_debug(const Parts&... parts) {
  log_message(LogLevel::kDebug, cat(parts...));
}
template <class... Parts>
void log_info(const Parts&... parts) {
  log_message(LogLevel::kInfo, cat(parts...));
}
template <class... Parts>
void log_warning(const Parts&... parts) {
  log_message(LogLevel::kWarning, cat(parts...));
}
template <class... Parts>
void log_error(const Parts&... parts) {
  log_message(LogLevel::kError, cat(parts...));
}

}  // namespace laplace
