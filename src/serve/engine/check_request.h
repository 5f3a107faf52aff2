// Refuses requests the engine could not carry out, before they reach its thread.
#pragma once

#include "serve/engine/engine.h"
#include "serve/engine/request.h"

namespace laplace {

// Throws Error(kBadInput) in one sentence that names the field.
void check_request(const EngineModel& model, const Request& request);
// The part of it that needs no model.
void check_numbers(const Request& request);

}  // namespace laplace
