// An error as a client of the HTTP API sees it: a status and OpenAI's error object.
#pragma once

#include <string>
#include <utility>

#include "base/error.h"
#include "serve/http/exchange.h"

namespace laplace {

class ApiError : public Error {
 public:
  // `param`: the field at fault, or "". `code`: a short name that programs may test, or "".
  ApiError(int status, std::string param, std::string code, const std::string& message)
      : Error(status >= 500 ? ErrorKind::kFailure : ErrorKind::kBadInput, message),
        status_(status),
        param_(std::move(param)),
        code_(std::move(code)) {}

  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }
  // OpenAI's "type": "invalid_request_error", "authentication_error", "rate_limit_error", ...
  std::string_view type() const;
  // {"error":{"message","type","param","code"}}
  std::string body() const;

 private:
  int status_;
  std::string param_;
  std::string code_;
};

// The error as a whole answer. Where it helps to come again it says when (Retry-After), and where
// it does not, that it should not be tried (x-should-retry, which OpenAI's clients obey: by their
// own rules they send again whatever is 409, 429 or 500 and above).
HttpResponse error_response(const ApiError& error);

// 400 that names the field.
template <class... Parts>
[[noreturn]] void fail_field(const std::string& param, const Parts&... parts) {
  throw ApiError(400, param, "invalid_value", cat(parts...));
}

}  // namespace laplace
