// Small things that the handlers share. Internal to src/serve/http.
#pragma once

#include <memory>
#include <utility>

#include "base/log.h"
#include "serve/http/api_error.h"
#include "serve/http/exchange.h"
#include "serve/sessions/session_manager.h"

namespace laplace {

// Runs `body`; whatever it throws becomes the answer.
template <class Body>
void answer_errors(const std::shared_ptr<Exchange>& exchange, const Body& body) {
  try {
    body();
  } catch (const ApiError& error) {
    exchange->respond(error_response(error));
  } catch (const StoreError& error) {
    log_error(error.what());
    exchange->respond(error_response(
        ApiError(503, "session", "store_unavailable", "the session store does not answer")));
  } catch (const QuotaError& error) {
    exchange->respond(error_response(ApiError(507, "session", "session_quota", error.what())));
  } catch (const Error& error) {
    const bool theirs = error.kind() == ErrorKind::kBadInput;
    exchange->respond(error_response(ApiError(theirs ? 400 : 500, "", "", error.what())));
  } catch (const std::exception& error) {
    log_error("a request failed: ", error.what());
    exchange->respond(error_response(ApiError(500, "", "internal", "the request failed here")));
  }
}

}  // namespace laplace
