// What the parts of the API share. Internal to src/serve/http; service.h is the face.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "serve/http/api_error.h"
#include "serve/http/backend.h"
#include "serve/http/chat_template.h"
#include "serve/http/metrics.h"
#include "serve/http/request_tickets.h"
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
        prefixes(settings.prefix_cache_bytes),
        tickets(settings.max_concurrent_per_key) {}

  Backend& backend;
  SessionManager& sessions;
  const ServiceOptions options;
  const Tokenizer tokenizer;
  const ChatTemplate chat;
  PrefixCache prefixes;
  ServerMetrics metrics;
  std::atomic<bool> draining{false};
  RequestTickets tickets;  // of requests from arrival to their end

  // Runs `work` on one of a few threads: `post` what computes, `post_to_store` what waits for the
  // store, so that a slow store stops only those who need it; at once, or after a time.
  std::function<void(std::function<void()>)> post, post_to_store;
  std::function<void(std::chrono::milliseconds, std::function<void()>)> post_to_store_after;
  // As `post`, what a request that has just come asks for. Throws ApiError 429 where too many wait.
  void post_request(std::function<void()> work) {
    if (waiting >= options.max_pending) {
      throw ApiError(429, "", "queue_full", "too many requests wait to be read; try again");
    }
    ++waiting;
    post([this, work = std::move(work)] {
      --waiting;
      work();
    });
  }
  std::atomic<int64_t> waiting{0};  // that post_request() has posted
};

}  // namespace laplace
