// Placeholder
#include "base/error.h"
#include "serve/engine/open_engine.h"
namespace laplace {
std::unique_ptr<Engine> open_torch_engine(const Path&, EngineModel, const EngineOptions& options) {
  fail_input("the engine does not run on ", options.device, " yet; try cpu");
}
}  // namespace laplace
