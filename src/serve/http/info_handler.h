// What the server says of itself, and the tokenizer's endpoints. Internal to src/serve/http.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "serve/http/exchange.h"
#include "serve/http/service_context.h"

namespace laplace {

class InfoHandler {
 public:
  explicit InfoHandler(ServiceContext& context) : context_(context) {}

  HttpResponse health() const;
  HttpResponse version() const;
  HttpResponse models() const;
  // Throws ApiError 404.
  HttpResponse model(std::string_view id) const;
  HttpResponse metrics() const;

  // From a worker thread.
  void tokenize(const std::shared_ptr<Exchange>& exchange, const std::string& tenant);
  void detokenize(const std::shared_ptr<Exchange>& exchange, const std::string& tenant);

 private:
  Json model_json() const;
  void write_engine_metrics(std::string& out, const std::string& labels) const;
  void write_session_metrics(std::string& out, const std::string& labels) const;

  ServiceContext& context_;
  const int64_t started_ = int64_t(std::time(nullptr));
};

}  // namespace laplace
