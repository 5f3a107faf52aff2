// Sessions in use: one holder at a time, saved in the background, the recent ones kept in memory.
//
// A session is taken (a lease), gone on with, and committed; the lease ends when the new state is
// durable, or when it is dropped without a commit, and then the session is what it was. What is in
// memory is used only when the store still has the same version, so several servers may share one.
//
// Thread-safe. acquire, fork, erase and list may block on the store; commit does not.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "serve/sessions/session_record.h"
#include "serve/sessions/state_store.h"

namespace laplace {

struct SessionLimits {
  int64_t memory_bytes = 1ll << 30;   // of states kept in memory
  int64_t stored_bytes = 10ll << 30;  // of one tenant in the store
  int64_t stored_sessions = 10'000;   // of one tenant
  int savers = 2;                     // threads that write
};

struct SessionStats {
  int64_t hits = 0;     // taken from memory
  int64_t loads = 0;    // read from the store
  int64_t misses = 0;   // new names
  int64_t refused = 0;  // states that were damaged or another model's
  int64_t saves = 0, save_errors = 0;
  int64_t memory_bytes = 0, memory_sessions = 0;
  int64_t evicted = 0;  // from memory
  int64_t in_use = 0;
};

class SessionManager;

// The right to use one session, from acquire() to commit() or the end of the object.
class SessionLease {
 public:
  ~SessionLease();
  SessionLease(const SessionLease&) = delete;
  SessionLease& operator=(const SessionLease&) = delete;

  const SessionKey& key() const { return key_; }
  // The state that was saved; null for a new session, and for one whose state was refused.
  const std::shared_ptr<const SessionRecord>& record() const { return record_; }
  // Why the state was refused, in one sentence; "" when it was not.
  const std::string& refusal() const { return refusal_; }

 private:
  friend class SessionManager;
  SessionLease(SessionManager& manager, SessionKey key, std::unique_ptr<StoreLock> lock)
      : manager_(manager), key_(std::move(key)), lock_(std::move(lock)) {}

  SessionManager& manager_;
  const SessionKey key_;
  std::unique_ptr<StoreLock> lock_;
  std::shared_ptr<const SessionRecord> record_;
  std::string refusal_;
  bool newcomer_ = false;  // counted among those not in the store yet
};

// A new session would be one too many.
class QuotaError : public Error {
 public:
  explicit QuotaError(const std::string& message) : Error(ErrorKind::kBadInput, message) {}
};

class SessionManager {
 public:
  SessionManager(std::unique_ptr<StateStore> store, StateShape shape, const SessionLimits& limits);
  ~SessionManager();  // finishes what is being saved
  SessionManager(const SessionManager&) = delete;
  SessionManager& operator=(const SessionManager&) = delete;

  // Null when the session is in use, here or elsewhere. Throws StoreError, QuotaError.
  std::unique_ptr<SessionLease> acquire(const SessionKey& key);
  // Saves `record` (its info's name, version, times and counts are filled in here) on a thread of
  // its own, gives the lease back, then calls `done(saved)` there.
  void commit(std::unique_ptr<SessionLease> lease, SessionRecord record,
              std::function<void(bool saved)> done);

  std::vector<SessionInfo> list(const std::string& tenant) { return store_->list(tenant); }
  std::optional<SessionInfo> find(const SessionKey& key) { return store_->peek(key); }
  enum class ForkResult { kDone, kNotFound, kRefused, kExists, kBusy };
  // A session of another name that goes on from the same state.
  ForkResult fork(const SessionKey& key, const std::string& new_name);
  EraseResult erase(const SessionKey& key);

  // Returns when nothing is being saved, or false after `timeout`.
  bool flush(std::chrono::milliseconds timeout);

  SessionStats stats() const;
  std::string describe() const { return store_->describe(); }

 private:
  friend class SessionLease;
  struct Save {
    std::unique_ptr<SessionLease> lease;
    std::shared_ptr<SessionRecord> record;
    std::function<void(bool)> done;
  };
  struct Kept {
    std::string key;
    std::shared_ptr<const SessionRecord> record;
  };

  void load(SessionLease& lease);
  void check_quota(SessionLease& lease);
  bool save(const Save& work);
  void run_saver();
  void keep(const std::string& key, std::shared_ptr<const SessionRecord> record);
  void forget(const std::string& key);
  void release(const SessionKey& key, bool newcomer);

  const std::unique_ptr<StateStore> store_;
  const StateShape shape_;
  const SessionLimits limits_;

  mutable std::mutex mutex_;
  std::set<std::string> in_use_;
  std::map<std::string, int64_t> newcomers_;  // by tenant: leases of sessions not in the store yet
  std::list<Kept> kept_;                      // the most recently used first
  std::unordered_map<std::string, std::list<Kept>::iterator> places_;
  SessionStats stats_;

  std::condition_variable wake_, idle_;
  std::deque<Save> queue_;
  int saving_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> savers_;
};

}  // namespace laplace
