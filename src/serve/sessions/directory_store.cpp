// Sessions in a directory; see state_store.h.
#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/xxh64.h"
#include "serve/sessions/state_store.h"

namespace laplace {

namespace {

constexpr std::string_view kEnding = ".session";
constexpr const char* kLockFile = ".locks";
constexpr std::string_view kTemporary = ".session.tmp";

[[noreturn]] void fail_store(const std::string& what) {
  throw StoreError(cat(what, ": ", std::strerror(errno)));
}

// Beneath `directory`, through no symbolic link: by openat2 where the kernel has it; names have no
// '/' and O_NOFOLLOW says the same elsewhere.
Descriptor open_beneath(int directory, const std::string& name, int flags, mode_t mode = 0) {
  struct open_how how {};
  how.flags = uint64_t(flags) | O_CLOEXEC | O_NOFOLLOW;
  how.mode = mode;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  const long got = ::syscall(SYS_openat2, directory, name.c_str(), &how, sizeof how);
  if (got >= 0 || (errno != ENOSYS && errno != EPERM)) return Descriptor(int(got));
  return Descriptor(::openat(directory, name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, mode));
}

class DirectoryLock : public StoreLock {
 public:
  explicit DirectoryLock(Descriptor file) : file_(std::move(file)) {}

 private:
  Descriptor file_;  // closing it gives the lock back
};

class DirectoryStore : public StateStore {
 public:
  explicit DirectoryStore(const Path& directory) : path_(directory) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    root_ = Descriptor(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!root_) {
      fail_input("cannot use ", directory.string(), " for sessions: ", std::strerror(errno),
                 "; give another --state-dir");
    }
    if (::faccessat(root_.get(), ".", W_OK, 0) != 0) {
      fail_input("cannot write to ", directory.string(), ": ", std::strerror(errno),
                 "; give another --state-dir");
    }
    remove_left_overs();
  }

  std::unique_ptr<StoreLock> try_lock(const SessionKey& key) override {
    Descriptor file = open_beneath(root_.get(), kLockFile, O_RDWR | O_CREAT, 0600);
    if (!file) fail_store(cat("cannot open the locks in ", path_.string()));
    const std::string text = key.text();
    struct flock range {};
    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    range.l_start = off_t(xxh64(std::as_bytes(std::span(text))) >> 2);  // a byte for each name
    range.l_len = 1;
    if (::fcntl(file.get(), F_OFD_SETLK, &range) == 0) {
      return std::make_unique<DirectoryLock>(std::move(file));
    }
    if (errno == EAGAIN || errno == EACCES) return nullptr;
    fail_store(cat("cannot lock in ", path_.string()));
  }

  std::optional<std::string> read(const SessionKey& key, uint64_t max_bytes) override {
    int64_t size = 0;
    auto bytes = read_first(key, max_bytes, &size);
    if (bytes && uint64_t(size) > max_bytes) {
      fail_input(shown(key), " takes ", human_bytes(double(size)),
                 ", more than a state of this model can");
    }
    return bytes;
  }

  std::optional<SessionInfo> peek(const SessionKey& key) override {
    int64_t size = 0;
    const auto beginning = read_first(key, kMaxSessionHeader + 64, &size);
    if (!beginning) return std::nullopt;
    SessionInfo info = peek_session(*beginning, size, shown(key));
    info.name = key.name;  // a copy's header has the name of what it was copied from
    return info;
  }

  void write(const StoreLock&, const SessionKey& key, const SessionInfo&,
             std::string_view bytes) override {
    const Descriptor tenant = open_tenant(key.tenant, true);
    const std::string name = key.name + std::string(kEnding);
    const std::string temporary = key.name + std::string(kTemporary);  // the lock keeps others away
    ::unlinkat(tenant.get(), temporary.c_str(), 0);
    const Descriptor file =
        open_beneath(tenant.get(), temporary, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (!file) fail_store(cat("cannot write ", source(key)));
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t put = ::write(file.get(), bytes.data() + at, bytes.size() - at);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) give_up(tenant.get(), temporary, key);
      at += size_t(put);
    }
    if (::fsync(file.get()) != 0 ||
        ::renameat(tenant.get(), temporary.c_str(), tenant.get(), name.c_str()) != 0) {
      give_up(tenant.get(), temporary, key);
    }
    if (::fsync(tenant.get()) != 0) fail_store(cat("cannot sync ", source(key)));
  }

  EraseResult erase(const SessionKey& key) override {
    const auto lock = try_lock(key);
    if (lock == nullptr) return EraseResult::kBusy;
    const Descriptor tenant = open_tenant(key.tenant, false);
    if (!tenant) return EraseResult::kNotFound;
    ::unlinkat(tenant.get(), (key.name + std::string(kTemporary)).c_str(), 0);
    if (::unlinkat(tenant.get(), (key.name + std::string(kEnding)).c_str(), 0) != 0) {
      if (errno == ENOENT) return EraseResult::kNotFound;
      fail_store(cat("cannot delete ", source(key)));
    }
    ::fsync(tenant.get());
    return EraseResult::kDone;
  }

  std::vector<SessionInfo> list(const std::string& tenant) override {
    std::vector<SessionInfo> sessions;
    for (const std::string& name : names(tenant, kEnding)) {
      try {
        if (auto info = peek({tenant, name})) sessions.push_back(std::move(*info));
      } catch (const StoreError&) {
        throw;
      } catch (const Error& error) {
        log_warning(error.what());
        sessions.push_back({name, "", 0, 0, 0, 0, 0});
      }
    }
    return sessions;
  }

  StoreUsage usage(const std::string& tenant) override {
    StoreUsage usage;
    const Descriptor folder = open_tenant(tenant, false);
    for (const std::string& name : names(tenant, kEnding)) {
      struct stat info {};
      const std::string file = name + std::string(kEnding);
      if (::fstatat(folder.get(), file.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
      ++usage.sessions;
      usage.bytes += info.st_size;
    }
    return usage;
  }

  std::string describe() const override { return cat("the directory ", path_.string()); }

 private:
  std::string source(const SessionKey& key) const {
    return (path_ / key.tenant / (key.name + std::string(kEnding))).string();
  }

  // As a client may see it.
  static std::string shown(const SessionKey& key) { return cat("the session ", key.name); }

  // What processes that were killed have left, but for what others are writing.
  void remove_left_overs() {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
      const std::string tenant = entry.path().filename().string();
      if (!entry.is_directory(error) || entry.is_symlink(error)) continue;
      const Descriptor folder = open_tenant(tenant, false);
      for (const std::string& name : names(tenant, kTemporary)) {
        const auto lock = try_lock({tenant, name});
        if (lock) ::unlinkat(folder.get(), (name + std::string(kTemporary)).c_str(), 0);
      }
    }
  }

  [[noreturn]] void give_up(int tenant, const std::string& temporary, const SessionKey& key) {
    const int code = errno;
    ::unlinkat(tenant, temporary.c_str(), 0);
    errno = code;
    fail_store(cat("cannot write ", source(key)));
  }

  // Not open when it is not there and `make` is false.
  Descriptor open_tenant(const std::string& tenant, bool make) {
    if (make && ::mkdirat(root_.get(), tenant.c_str(), 0700) == 0) ::fsync(root_.get());
    Descriptor folder = open_beneath(root_.get(), tenant, O_RDONLY | O_DIRECTORY);
    if (!folder && (make || errno != ENOENT)) {
      fail_store(cat("cannot open ", (path_ / tenant).string()));
    }
    return folder;
  }

  // At most `limit` bytes of the file.
  std::optional<std::string> read_first(const SessionKey& key, uint64_t limit, int64_t* size) {
    const Descriptor tenant = open_tenant(key.tenant, false);
    if (!tenant) return std::nullopt;
    const Descriptor file =
        open_beneath(tenant.get(), key.name + std::string(kEnding), O_RDONLY | O_NONBLOCK);
    if (!file && errno == ENOENT) return std::nullopt;
    if (!file && (errno == EACCES || errno == EPERM || errno == ELOOP)) {  // the fault of this one
      fail_input(shown(key), " cannot be read: ", std::strerror(errno));
    }
    struct stat info {};
    if (!file || ::fstat(file.get(), &info) != 0) fail_store(cat("cannot read ", source(key)));
    if (!S_ISREG(info.st_mode)) fail_input(shown(key), " is not a file");
    if (size != nullptr) *size = info.st_size;
    std::string bytes(size_t(std::min<uint64_t>(uint64_t(info.st_size), limit)), '\0');
    size_t at = 0;
    while (at < bytes.size()) {
      const ssize_t got = ::read(file.get(), bytes.data() + at, bytes.size() - at);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_store(cat("cannot read ", source(key)));
      if (got == 0) break;
      at += size_t(got);
    }
    bytes.resize(at);
    return bytes;
  }

  // Of the tenant's files, without their ending.
  std::vector<std::string> names(const std::string& tenant, std::string_view ending) {
    Descriptor folder = open_tenant(tenant, false);
    if (!folder) return {};
    const int copy = ::dup(folder.get());
    DIR* const entries = copy < 0 ? nullptr : ::fdopendir(copy);
    if (entries == nullptr) fail_store(cat("cannot list ", (path_ / tenant).string()));
    ::rewinddir(entries);
    std::vector<std::string> names;
    while (const dirent* entry = ::readdir(entries)) {
      const std::string_view name = entry->d_name;
      if (name.ends_with(ending)) names.emplace_back(name.substr(0, name.size() - ending.size()));
    }
    ::closedir(entries);
    return names;
  }

  const Path path_;
  Descriptor root_;
};

}  // namespace

std::unique_ptr<StateStore> open_directory_store(const Path& directory) {
  return std::make_unique<DirectoryStore>(directory);
}

std::unique_ptr<StateStore> open_state_store(const std::string& place) {
  if (place.starts_with("redis://")) return open_redis_store(place);
  if (place.find("://") != std::string::npos) {
    fail_input("--state-store ", quoted(place), " is neither a directory nor redis://HOST:PORT");
  }
  return open_directory_store(place);
}

Path default_session_directory() {
  const auto set = [](const char* value) { return value != nullptr && *value != '\0'; };
  if (const char* const state = std::getenv("XDG_STATE_HOME"); set(state)) {
    return Path(state) / "laplace" / "sessions";
  }
  const char* const home = std::getenv("HOME");
  return Path(set(home) ? home : ".") / ".local" / "state" / "laplace" / "sessions";
}

}  // namespace laplace
