// A server in memory for unit tests and the fuzzer: exchanges without sockets, an engine that
// continues every prompt by its own rule at once, a store that is a map.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "serve/http/backend.h"
#include "serve/http/exchange.h"
#include "serve/http/service.h"
#include "serve/http/work_pool.h"
#include "serve/sessions/state_store.h"

namespace laplace {

// 256 bytes and end of text.
inline Tokenizer byte_tokenizer() {
  const std::vector<std::string> specials = {"<|endoftext|>"};
  return Tokenizer::from_merges({}, specials);
}

// Says the letters a, b, c, ... from where the state stands; the state is the position. Runs in the
// caller's thread: submit() returns when the request is over.
class FakeBackend : public Backend {
 public:
  FakeBackend() {
    model_.config.vocab_size = 257;
    model_.tokenizer = byte_tokenizer();
    model_.end_of_text = 256;
  }

  RequestId submit(Request request, std::shared_ptr<Sink> sink) override {
    if (request.prompt.empty() && request.from == nullptr) fail_input("nothing to begin from");
    for (const TokenId id : request.prompt) {
      if (id < 0 || id >= 257) fail_input("the token id ", id, " is outside the vocabulary");
    }
    request.sampling.validate();
    prompt_tokens += int64_t(request.prompt.size());
    const int64_t before = request.from ? request.from->position : 0;
    for (const int64_t at : request.snapshot_at) sink->on_snapshot(0, at, state(before + at));
    if (request.prompt_log_probs) {
      std::vector<TokenResult> results;
      for (const TokenId id : request.prompt) results.push_back({id, -1, {}});
      sink->on_prompt(results);
    }
    for (int i = 0; i < request.n; ++i) {
      int64_t position = before + int64_t(request.prompt.size());
      const int64_t tokens = std::min<int64_t>(request.max_tokens, 20);
      for (int64_t t = 0; t < tokens; ++t, ++position) {
        const auto id = model_.tokenizer->encode(std::string(1, char('a' + position % 26)))[0];
        TokenResult result{id, -0.5, {}};
        if (request.top_log_probs > 0) result.top.push_back({id, -0.5});
        sink->on_token(i, result, std::string(1, char('a' + position % 26)));
      }
      if (request.snapshot_at_end) sink->on_snapshot(i, -1, state(position));
      Finish finish;
      finish.reason = FinishReason::kLength;
      finish.generated_tokens = tokens;
      sink->on_finish(i, finish);
    }
    return ++last_;
  }
  void cancel(RequestId) override {}
  bool drain(std::chrono::milliseconds) override { return true; }
  void stop() override {}
  EngineStats stats() const override { return {}; }
  const EngineModel& model() const override { return model_; }
  int64_t bytes_per_sequence() const override { return 16; }
  int64_t most_sequences() const override { return 1 << 20; }
  std::string description() const override { return "letters"; }

  static std::shared_ptr<const SequenceSnapshot> state(int64_t position) {
    auto made = std::make_shared<SequenceSnapshot>();
    made->slot = {float(position), 1, 2, 3};
    made->logits.assign(257, 0.25F);
    made->counts = {{5, true, 0}, {7, false, 3}};
    made->position = std::max<int64_t>(position, 1);
    return made;
  }

  std::atomic<int64_t> prompt_tokens{0};

 private:
  EngineModel model_;
  std::atomic<RequestId> last_{0};
};

class MemoryStore : public StateStore {
 public:
  struct Lock : StoreLock {
    ~Lock() override {
      const std::lock_guard guard(store->mutex_);
      store->locked_.erase(key);
    }
    MemoryStore* store;
    std::string key;
    Lock(MemoryStore* s, std::string k) : store(s), key(std::move(k)) {}
  };

  std::unique_ptr<StoreLock> try_lock(const SessionKey& key) override {
    const std::lock_guard guard(mutex_);
    if (!locked_.emplace(key.text(), true).second) return nullptr;
    return std::make_unique<Lock>(this, key.text());
  }
  std::optional<std::string> read(const SessionKey& key, uint64_t) override {
    const std::lock_guard guard(mutex_);
    const auto place = bytes.find(key.text());
    if (place == bytes.end()) return std::nullopt;
    return place->second;
  }
  std::optional<SessionInfo> peek(const SessionKey& key) override {
    const auto all = read(key, UINT64_MAX);
    if (!all) return std::nullopt;
    return peek_session(*all, int64_t(all->size()), key.text());
  }
  void write(const StoreLock&, const SessionKey& key, const SessionInfo&,
             std::string_view content) override {
    const std::lock_guard guard(mutex_);
    if (fails) throw StoreError("the store is full");
    bytes[key.text()] = content;
  }
  EraseResult erase(const SessionKey& key) override {
    const std::lock_guard guard(mutex_);
    if (locked_.contains(key.text())) return EraseResult::kBusy;
    return bytes.erase(key.text()) == 1 ? EraseResult::kDone : EraseResult::kNotFound;
  }
  std::vector<SessionInfo> list(const std::string& tenant) override {
    std::vector<SessionInfo> out;
    const std::lock_guard guard(mutex_);
    for (const auto& [key, content] : bytes) {
      if (key.starts_with(tenant + "/")) {
        out.push_back(peek_session(content, int64_t(content.size()), key));
      }
    }
    return out;
  }
  StoreUsage usage(const std::string& tenant) override {
    StoreUsage usage;
    for (const SessionInfo& info : list(tenant)) ++usage.sessions, usage.bytes += info.bytes;
    return usage;
  }
  std::string describe() const override { return "memory"; }

  std::map<std::string, std::string> bytes;
  bool fails = false;

 private:
  std::mutex mutex_;
  std::map<std::string, bool> locked_;
};

inline StateShape fake_shape() { return {"0123456789abcdef", 4, 257}; }

// One exchange. All of them share one sequence.
class MemoryExchange : public Exchange, public std::enable_shared_from_this<MemoryExchange> {
 public:
  explicit MemoryExchange(HttpRequest request) : request_(std::move(request)) {}

  const HttpRequest& request() const override { return request_; }
  void release_body() override { request_.body.clear(); }
  void post(std::function<void()> work) override {
    static WorkPool one_by_one(1);
    one_by_one.post(std::move(work));
  }
  void post_after(std::chrono::milliseconds, std::function<void()>) override {}
  void respond(HttpResponse response) override { end(std::move(response)); }
  void open_stream(HttpResponse head) override {
    const std::lock_guard guard(mutex_);
    status = head.status;
    body += head.body;
  }
  void write(std::string bytes) override {
    const std::lock_guard guard(mutex_);
    body += bytes;
  }
  void finish() override { end({status, "", body, {}}); }
  void on_closed(std::function<void()> callback) override {
    const std::lock_guard guard(mutex_);
    closed_ = std::move(callback);
  }
  void annotate(Json) override {}

  void wait() {
    std::unique_lock guard(mutex_);
    ended_.wait(guard, [this] { return done; });
  }

  int status = 0;
  std::string body;
  bool done = false;

 private:
  void end(HttpResponse response) {
    std::function<void()> dropped;  // what it holds may hold this
    const std::lock_guard guard(mutex_);
    if (done) return;
    status = response.status;
    body = std::move(response.body);
    done = true;
    dropped.swap(closed_);
    ended_.notify_all();
  }

  HttpRequest request_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::function<void()> closed_;
};

struct MemoryServer {
  explicit MemoryServer(ServiceOptions options = {})
      : sessions(make_store(), fake_shape(), SessionLimits{1 << 20, 1 << 20, 100, 1}),
        service(backend, sessions, options) {}

  std::unique_ptr<StateStore> make_store() {
    auto made = std::make_unique<MemoryStore>();
    store = made.get();
    return made;
  }

  std::shared_ptr<MemoryExchange> ask(const std::string& method, const std::string& target,
                                      std::string body, const std::string& authorization = "") {
    HttpRequest request;
    request.method = method;
    request.target = target;
    request.body = std::move(body);
    request.content_type = "application/json";
    request.authorization = authorization;
    request.received = std::chrono::steady_clock::now();
    auto exchange = std::make_shared<MemoryExchange>(request);
    if (auto refusal = service.precheck(request)) {
      exchange->respond(std::move(*refusal));
    } else {
      service.handle(exchange);
      exchange->wait();
    }
    return exchange;
  }

  FakeBackend backend;
  MemoryStore* store = nullptr;
  SessionManager sessions;
  Service service;
};

}  // namespace laplace
