// Sessions in Redis; see state_store.h.
//
// Keys, T the tenant and N the name: "laplace:T:info" a hash N -> JSON of SessionInfo,
// "laplace:T:state:N" the bytes, "laplace:T:lock:N" a random token that expires unless it is
// renewed. A write happens only while the lock is ours (checked in the same script), so a process
// that stood still for longer than a lock lives cannot overwrite what another has done since.
#include <chrono>
#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "serve/sessions/random_hex.h"
#include "serve/sessions/redis_connections.h"
#include "serve/sessions/state_store.h"

namespace laplace {

namespace {

constexpr int kLockMilliseconds = 5000;
constexpr std::chrono::milliseconds kRenewEvery{1500};

// 1 where the lock is ours, from an earlier try whose answer was lost too.
constexpr const char* kLockScript =
    "if redis.call('set',KEYS[1],ARGV[1],'NX','PX',ARGV[2]) then return 1 end "
    "if redis.call('get',KEYS[1])==ARGV[1] then return 1 else return 0 end";
// Takes no lock, so that it goes in a Redis that is full.
constexpr const char* kEraseScript =
    "if redis.call('exists',KEYS[1])==1 then return -1 end redis.call('del',KEYS[2]) "
    "return redis.call('hdel',KEYS[3],ARGV[1])";
constexpr const char* kRenewScript =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) "
    "else return 0 end";
constexpr const char* kReleaseScript =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
constexpr const char* kWriteScript =
    "if redis.call('get',KEYS[1])~=ARGV[1] then return 0 end "
    "redis.call('set',KEYS[2],ARGV[2]) redis.call('hset',KEYS[3],ARGV[3],ARGV[4]) return 1";

std::string key_of(const SessionKey& key, std::string_view kind) {
  return cat("laplace:", key.tenant, ":", kind, ":", key.name);
}
std::string info_key(const std::string& tenant) { return cat("laplace:", tenant, ":info"); }

std::string text_of(const SessionInfo& info, size_t bytes) {
  Json json = info.to_json();
  json["version"] = info.version;
  json["bytes"] = bytes;
  return to_line(json);
}

SessionInfo info_of(std::string_view text) {
  const Json json = parse_json(text, "Redis", {kMaxSessionHeader, 8});
  JsonFields fields(json, "a session in Redis");
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  fields.ignore("object");
  return {fields.text("id"),
          fields.text("version"),
          fields.integer("position", 0, kLargest),
          fields.integer("turns", 0, kLargest),
          fields.integer("created", 0, kLargest),
          fields.integer("updated", 0, kLargest),
          fields.integer("bytes", 0, kLargest)};
}

class RedisStore;

class RedisLock : public StoreLock {
 public:
  RedisLock(RedisStore& store, std::string key, std::string token)
      : store_(store), key_(std::move(key)), token_(std::move(token)) {}
  ~RedisLock() override;

  const std::string& token() const { return token_; }

 private:
  RedisStore& store_;
  const std::string key_;
  const std::string token_;
};

class RedisStore : public StateStore {
 public:
  explicit RedisStore(const std::string& url) : redis_(url) {
    redis_.command({"PING"});
    refuse_cluster();
    renewer_ = std::thread([this] { renew(); });
  }

  ~RedisStore() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    renewer_.join();
  }

  std::unique_ptr<StoreLock> try_lock(const SessionKey& key) override {
    const std::string name = key_of(key, "lock");
    const std::string token = random_hex(16);
    const RedisReply answer =
        redis_.command({"EVAL", kLockScript, "1", name, token, std::to_string(kLockMilliseconds)});
    if (answer->type != REDIS_REPLY_INTEGER || answer->integer != 1) return nullptr;
    const std::lock_guard lock(mutex_);
    held_.emplace(name, token);
    return std::make_unique<RedisLock>(*this, name, token);
  }

  void release(const std::string& key, const std::string& token) {
    {
      const std::lock_guard lock(mutex_);
      held_.erase(key);
    }
    try {
      redis_.command({"EVAL", kReleaseScript, "1", key, token});
    } catch (const Error& error) {
      log_warning("a session stays locked for ", kLockMilliseconds / 1000, " s: ", error.what());
    }
  }

  std::optional<std::string> read(const SessionKey& key, uint64_t max_bytes) override {
    const RedisReply answer = redis_.command({"GET", key_of(key, "state")});
    if (answer->type != REDIS_REPLY_STRING) return std::nullopt;
    if (answer->len > max_bytes) {
      fail_input("the session ", key.name, " is larger than a state of this model can be");
    }
    return std::string(answer->str, answer->len);
  }

  std::optional<SessionInfo> peek(const SessionKey& key) override {
    const RedisReply answer = redis_.command({"HGET", info_key(key.tenant), key.name});
    if (answer->type != REDIS_REPLY_STRING) return std::nullopt;
    return info_of({answer->str, answer->len});
  }

  void write(const StoreLock& lock, const SessionKey& key, const SessionInfo& info,
             std::string_view bytes) override {
    const std::string text = text_of(info, bytes.size());
    const RedisReply answer = redis_.command(
        {"EVAL", kWriteScript, "3", key_of(key, "lock"), key_of(key, "state"), info_key(key.tenant),
         dynamic_cast<const RedisLock&>(lock).token(), bytes, key.name, text});
    if (answer->type != REDIS_REPLY_INTEGER || answer->integer != 1) {
      throw StoreError(cat("the lock of the session ", key.name, " was lost; nothing was saved"));
    }
  }

  EraseResult erase(const SessionKey& key) override {
    const RedisReply answer =
        redis_.command({"EVAL", kEraseScript, "3", key_of(key, "lock"), key_of(key, "state"),
                        info_key(key.tenant), key.name});
    if (answer->type == REDIS_REPLY_INTEGER && answer->integer < 0) return EraseResult::kBusy;
    const bool known = answer->type == REDIS_REPLY_INTEGER && answer->integer == 1;
    return known ? EraseResult::kDone : EraseResult::kNotFound;
  }

  std::vector<SessionInfo> list(const std::string& tenant) override {
    const RedisReply answer = redis_.command({"HGETALL", info_key(tenant)});
    std::vector<SessionInfo> sessions;
    for (size_t i = 0; i + 1 < answer->elements; i += 2) {
      const redisReply &name = *answer->element[i], &item = *answer->element[i + 1];
      try {
        sessions.push_back(info_of({item.str, item.len}));
      } catch (const Error& error) {
        log_warning(error.what());
        sessions.push_back({std::string(name.str, name.len), "", 0, 0, 0, 0, 0});
      }
    }
    return sessions;
  }

  StoreUsage usage(const std::string& tenant) override {
    StoreUsage usage;
    for (const SessionInfo& info : list(tenant)) {
      ++usage.sessions;
      usage.bytes += info.bytes;
    }
    return usage;
  }

  std::string describe() const override { return redis_.describe(); }

 private:
  // Its nodes answer for others, which this client does not follow.
  void refuse_cluster() {
    std::string_view text;
    RedisReply answer;
    try {
      answer = redis_.command({"INFO", "cluster"});
      text = {answer->str, answer->len};
    } catch (const StoreError&) {
      return;  // not allowed to ask
    }
    if (text.find("cluster_enabled:1") != std::string_view::npos) {
      fail_input("--state-store: ", describe(), " is a node of a cluster; name a Redis of its own");
    }
  }

  void renew() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      wake_.wait_for(lock, kRenewEvery);
      const auto held = held_;
      lock.unlock();
      for (const auto& [key, token] : held) {
        try {
          redis_.command(
              {"EVAL", kRenewScript, "1", key, token, std::to_string(kLockMilliseconds)});
        } catch (const Error& error) {
          log_warning("cannot renew the lock of a session: ", error.what());
        }
      }
      lock.lock();
    }
  }

  RedisConnections redis_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::string, std::string> held_;
  bool stopping_ = false;
  std::thread renewer_;
};

RedisLock::~RedisLock() { store_.release(key_, token_); }

}  // namespace

std::unique_ptr<StateStore> open_redis_store(const std::string& url) {
  try {
    return std::make_unique<RedisStore>(url);
  } catch (const StoreError& error) {
    fail_input("--state-store: ", error.what());
  }
}

}  // namespace laplace
