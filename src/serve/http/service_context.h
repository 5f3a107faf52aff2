// What the parts of the API share. Internal to src/serve/http; service.h is the face.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "serve/http/backend.h"
#include "serve/http/chat_template.h"
#include "serve/http/metrics.h"
#include "serve/http/service.h"
#include "serve/sessions/prefix_cache.h"
#include "serve/sessions/session_manager.h"

namespace laplace {

struct ServiceContext {
  ServiceContext(Backend& engine, SessionManager& session_manager, const ServiceOptions& settings)
      : backend(engine),
        sessions(session_manager),
        options(settings),
        tokenizer(*engine.model().tokenizer),
        chat(settings.chat_template, tokenizer),
        prefixes(settings.prefix_cache_bytes) {}

  Backend& backend;
  SessionManager& sessions;
  const ServiceOptions options;
  const Tokenizer tokenizer;
  const ChatTemplate chat;
  PrefixCache prefixes;
  ServerMetrics metrics;
  std::atomic<bool> draining{false};
  std::atomic<int64_t> active{0};  // requests from arrival to their end

  // Runs `work` on one of a few threads that may block; at once, or after a time.
  std::function<void(std::function<void()>)> post;
  std::function<void(std::chrono::milliseconds, std::function<void()>)> post_after;
};

}  // namespace laplace
