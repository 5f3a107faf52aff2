// Refuses requests the engine could not carry out, before they reach its thread.
#pragma once

#include "serve/engine/engine.h"
#include "serve/engine/request.h"

namespace laplace {

// Throws Error(kBadInput) in one sentence that names the field.
void check_request(const EngineModel& model, const Request& request);

}  // namespace laplace
