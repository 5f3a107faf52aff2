// Where saved sessions lie: a directory (of this machine or shared), or Redis. Bytes in, bytes out;
// what they mean is session_record.h's.
//
// A session is locked while it is used, also against other processes on the same store. Names and
// tenants are checked by the callers: letters, digits, '_' and '-' only.
//
// Thread-safe. Calls may block; they throw StoreError when the store does not answer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "serve/sessions/session_record.h"

namespace laplace {

// The store cannot be reached or is full; trying again may help.
class StoreError : public Error {
 public:
  explicit StoreError(const std::string& message) : Error(ErrorKind::kFailure, message) {}
};

struct SessionKey {
  std::string tenant;
  std::string name;

  bool operator==(const SessionKey&) const = default;
  std::string text() const { return tenant + "/" + name; }
};

// Held as long as it lives.
class StoreLock {
 public:
  virtual ~StoreLock() = default;
};

enum class EraseResult { kDone, kNotFound, kBusy };

struct StoreUsage {
  int64_t sessions = 0;
  int64_t bytes = 0;
};

class StateStore {
 public:
  virtual ~StateStore() = default;

  // Null when somebody has it.
  virtual std::unique_ptr<StoreLock> try_lock(const SessionKey& key) = 0;
  // Nothing when there is none. peek reads no more than the header. Throws Error(kBadInput) for a
  // header that does not read, and for more than `max_bytes`.
  virtual std::optional<std::string> read(const SessionKey& key, uint64_t max_bytes) = 0;
  virtual std::optional<SessionInfo> peek(const SessionKey& key) = 0;
  // Durable when it returns; either the old or the new bytes are there at any time. `lock` must be
  // key's; nothing is written when it was lost.
  virtual void write(const StoreLock& lock, const SessionKey& key, const SessionInfo& info,
                     std::string_view bytes) = 0;
  // Without a lock: it takes its own, in a store that is full too.
  virtual EraseResult erase(const SessionKey& key) = 0;
  virtual std::vector<SessionInfo> list(const std::string& tenant) = 0;
  virtual StoreUsage usage(const std::string& tenant) = 0;
  // For the log: "the directory /var/lib/laplace".
  virtual std::string describe() const = 0;
};

// DIR/TENANT/NAME.session. Files are opened beneath DIR and never through a symbolic link; locks
// are advisory byte-range locks of one file, so that a killed process leaves none behind.
std::unique_ptr<StateStore> open_directory_store(const Path& directory);

// redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], with %XX for odd characters; the password may stand
// in LAPLACE_REDIS_PASSWORD instead. Locks expire some seconds after a process has died.
std::unique_ptr<StateStore> open_redis_store(const std::string& url);

// Either, by what `place` looks like.
std::unique_ptr<StateStore> open_state_store(const std::string& place);

// $XDG_STATE_HOME/laplace/sessions, or ~/.local/state/laplace/sessions.
Path default_session_directory();

}  // namespace laplace
