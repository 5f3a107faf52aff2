// See session_manager.h.
#include "serve/sessions/session_manager.h"

#include <sodium.h>

#include <ctime>
#include <utility>

#include "base/log.h"
#include "serve/sessions/random_hex.h"

namespace laplace {

namespace {

// Of a session's state, and the most that one may take with header and counts.
uint64_t state_bytes(const StateShape& shape) {
  return sizeof(float) * uint64_t(shape.slot_floats + shape.vocab_size);
}
uint64_t most_bytes(const StateShape& shape) {
  constexpr uint64_t kCountBytes = 12, kRest = 64;
  return state_bytes(shape) + kCountBytes * uint64_t(shape.vocab_size) + kMaxSessionHeader + kRest;
}

int64_t bytes_of(const SessionRecord& record) {
  return record.snapshot->bytes() + int64_t(sizeof record + record.pending.size());
}

}  // namespace

SessionLease::~SessionLease() {
  lock_.reset();  // the store's first: who comes next takes both
  manager_.release(key_, newcomer_);
}

SessionManager::SessionManager(std::unique_ptr<StateStore> store, StateShape shape,
                               const SessionLimits& limits)
    : store_(std::move(store)), shape_(std::move(shape)), limits_(limits) {
  if (sodium_init() < 0) fail("libsodium does not start");
  for (int i = 0; i < limits.savers; ++i) savers_.emplace_back([this] { run_saver(); });
}

SessionManager::~SessionManager() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& saver : savers_) saver.join();
}

std::unique_ptr<SessionLease> SessionManager::acquire(const SessionKey& key) {
  {
    const std::lock_guard lock(mutex_);
    if (!in_use_.insert(key.text()).second) return nullptr;
  }
  std::unique_ptr<StoreLock> held;
  try {
    held = store_->try_lock(key);
  } catch (...) {
    release(key, false);
    throw;
  }
  if (held == nullptr) {
    release(key, false);
    return nullptr;
  }
  std::unique_ptr<SessionLease> lease(new SessionLease(*this, key, std::move(held)));
  load(*lease);
  if (lease->record_ == nullptr && lease->refusal_.empty()) check_quota(*lease);
  return lease;
}

void SessionManager::load(SessionLease& lease) {
  const std::string key = lease.key_.text();
  try {
    const std::optional<SessionInfo> info = store_->peek(lease.key_);
    if (!info) {
      forget(key);
      const std::lock_guard lock(mutex_);
      ++stats_.misses;
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      const auto place = places_.find(key);
      if (place != places_.end() && place->second->record->info.version == info->version) {
        kept_.splice(kept_.begin(), kept_, place->second);
        lease.record_ = place->second->record;
        ++stats_.hits;
        return;
      }
    }
    const auto bytes = store_->read(lease.key_, most_bytes(shape_));
    if (!bytes) fail_input("the state of the session ", lease.key_.name, " is gone");
    lease.record_ = std::make_shared<const SessionRecord>(
        decode_session(*bytes, shape_, lease.key_.name, cat("the session ", lease.key_.name)));
    keep(key, lease.record_);
    const std::lock_guard lock(mutex_);
    ++stats_.loads;
  } catch (const StoreError&) {
    throw;
  } catch (const Error& error) {
    log_warning(error.what());
    lease.refusal_ = error.what();
    const std::lock_guard lock(mutex_);
    ++stats_.refused;
  }
}

// With those that other requests begin at this time: of this server, others may pass the bound by
// as many as they begin together.
void SessionManager::check_quota(SessionLease& lease) {
  StoreUsage usage;
  {
    const std::lock_guard lock(mutex_);
    lease.newcomer_ = true;
    const int64_t others = newcomers_[lease.key_.tenant]++;
    usage = {others, others * int64_t(state_bytes(shape_))};
  }
  const StoreUsage stored = store_->usage(lease.key_.tenant);
  usage.sessions += stored.sessions;
  usage.bytes += stored.bytes;
  if (usage.sessions >= limits_.stored_sessions) {
    throw QuotaError(cat("there are ", usage.sessions,
                         " sessions already, the most that a key may ", "have; delete some"));
  }
  if (usage.bytes >= limits_.stored_bytes) {
    throw QuotaError(cat("the sessions take ", human_bytes(double(usage.bytes)),
                         ", as much as those of a key may; delete some"));
  }
}

void SessionManager::commit(std::unique_ptr<SessionLease> lease, SessionRecord record,
                            std::function<void(bool)> done) {
  const auto& before = lease->record();
  record.info.name = lease->key().name;
  record.info.version = random_hex(16);
  record.info.updated = int64_t(std::time(nullptr));
  record.info.created = before ? before->info.created : record.info.updated;
  record.info.position = record.snapshot->position;
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(
        {std::move(lease), std::make_shared<SessionRecord>(std::move(record)), std::move(done)});
  }
  wake_.notify_one();
}

bool SessionManager::save(const Save& work) {
  try {
    const std::string bytes = encode_session(*work.record, shape_);
    work.record->info.bytes = int64_t(bytes.size());
    store_->write(*work.lease->lock_, work.lease->key_, work.record->info, bytes);
    keep(work.lease->key_.text(), work.record);
    return true;
  } catch (const std::exception& error) {
    log_error("a session was not saved: ", error.what());
    return false;
  }
}

void SessionManager::run_saver() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Save work = std::move(queue_.front());
    queue_.pop_front();
    ++saving_;
    lock.unlock();
    const bool saved = save(work);
    work.lease.reset();
    lock.lock();
    ++(saved ? stats_.saves : stats_.save_errors);
    lock.unlock();
    if (work.done) work.done(saved);
    work = {};  // what `done` holds may take this mutex when it goes
    lock.lock();
    --saving_;
    if (queue_.empty() && saving_ == 0) idle_.notify_all();
  }
}

bool SessionManager::flush(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, timeout, [this] { return queue_.empty() && saving_ == 0; });
}

void SessionManager::keep(const std::string& key, std::shared_ptr<const SessionRecord> record) {
  const std::lock_guard lock(mutex_);
  if (const auto place = places_.find(key); place != places_.end()) {
    stats_.memory_bytes -= bytes_of(*place->second->record);
    kept_.erase(place->second);
    places_.erase(place);
  }
  stats_.memory_bytes += bytes_of(*record);
  kept_.push_front({key, std::move(record)});
  places_[key] = kept_.begin();
  while (stats_.memory_bytes > limits_.memory_bytes && !kept_.empty()) {
    stats_.memory_bytes -= bytes_of(*kept_.back().record);
    places_.erase(kept_.back().key);
    kept_.pop_back();
    ++stats_.evicted;
  }
}

void SessionManager::forget(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto place = places_.find(key);
  if (place == places_.end()) return;
  stats_.memory_bytes -= bytes_of(*place->second->record);
  kept_.erase(place->second);
  places_.erase(place);
}

void SessionManager::release(const SessionKey& key, bool newcomer) {
  const std::lock_guard lock(mutex_);
  in_use_.erase(key.text());
  if (!newcomer) return;
  const auto place = newcomers_.find(key.tenant);
  if (--place->second == 0) newcomers_.erase(place);
}

SessionManager::ForkResult SessionManager::fork(const SessionKey& key,
                                                const std::string& new_name) {
  const SessionKey new_key{key.tenant, new_name};
  const auto from = acquire(key);
  if (from == nullptr) return ForkResult::kBusy;
  if (from->record() == nullptr) {
    return from->refusal().empty() ? ForkResult::kNotFound : ForkResult::kRefused;
  }
  if (new_name == key.name) return ForkResult::kExists;
  auto to = acquire(new_key);
  if (to == nullptr) return ForkResult::kBusy;
  if (to->record() != nullptr || !to->refusal().empty()) return ForkResult::kExists;
  const auto record = std::make_shared<SessionRecord>(*from->record());
  record->info.name = new_name;
  record->info.version = random_hex(16);
  record->info.created = record->info.updated = int64_t(std::time(nullptr));
  const std::string bytes = encode_session(*record, shape_);
  record->info.bytes = int64_t(bytes.size());
  store_->write(*to->lock_, new_key, record->info, bytes);
  keep(new_key.text(), record);
  return ForkResult::kDone;
}

// Without reading the state: a damaged one can be deleted.
EraseResult SessionManager::erase(const SessionKey& key) {
  {
    const std::lock_guard lock(mutex_);
    if (!in_use_.insert(key.text()).second) return EraseResult::kBusy;
  }
  try {
    const EraseResult result = store_->erase(key);
    if (result == EraseResult::kDone) forget(key.text());
    release(key, false);
    return result;
  } catch (...) {
    release(key, false);
    throw;
  }
}

SessionStats SessionManager::stats() const {
  const std::lock_guard lock(mutex_);
  SessionStats stats = stats_;
  stats.memory_sessions = int64_t(kept_.size());
  stats.in_use = int64_t(in_use_.size());
  return stats;
}

}  // namespace laplace
