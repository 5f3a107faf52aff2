// See api_error.h.
#include "serve/http/api_error.h"

#include "base/json.h"

namespace laplace {

std::string_view ApiError::type() const {
  switch (status_) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 409:
      return "conflict_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status_ >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string ApiError::body() const {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return to_line({{"error",
                   {{"message", what()},
                    {"type", type()},
                    {"param", or_null(param_)},
                    {"code", or_null(code_)}}}});
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response{error.status(), "application/json", error.body(), {}};
  switch (error.status()) {
    case 429:
    case 503:
      response.headers.emplace_back("retry-after", "1");
      break;
    case 409:
    case 504:
    case 507:
      if (error.code() == "session_busy") break;  // that passes
      response.headers.emplace_back("x-should-retry", "false");
      break;
    default:
      break;
  }
  return response;
}

}  // namespace laplace
