// What the server asks of an engine: serve/engine/engine.h, or a stand-in for it in tests.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "serve/engine/engine.h"

namespace laplace {

// Thread-safe, as Engine is; see there for what each member does.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual RequestId submit(Request request, std::shared_ptr<Sink> sink) = 0;
  virtual void cancel(RequestId id) = 0;
  virtual bool drain(std::chrono::milliseconds timeout) = 0;
  virtual void stop() = 0;
  virtual EngineStats stats() const = 0;
  virtual const EngineModel& model() const = 0;
  virtual int64_t bytes_per_sequence() const = 0;
  virtual int64_t most_sequences() const = 0;
  virtual std::string description() const = 0;
};

class EngineBackend : public Backend {
 public:
  explicit EngineBackend(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  RequestId submit(Request request, std::shared_ptr<Sink> sink) override {
    return engine_->submit(std::move(request), std::move(sink));
  }
  void cancel(RequestId id) override { engine_->cancel(id); }
  bool drain(std::chrono::milliseconds timeout) override { return engine_->drain(timeout); }
  void stop() override { engine_->stop(); }
  EngineStats stats() const override { return engine_->stats(); }
  const EngineModel& model() const override { return engine_->model(); }
  int64_t bytes_per_sequence() const override { return engine_->bytes_per_sequence(); }
  int64_t most_sequences() const override { return engine_->most_sequences(); }
  std::string description() const override { return engine_->description(); }

 private:
  std::unique_ptr<Engine> engine_;
};

}  // namespace laplace
