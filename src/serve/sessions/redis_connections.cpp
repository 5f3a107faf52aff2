// See redis_connections.h.
#include "serve/sessions/redis_connections.h"

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/percent_encoding.h"
#include "base/strings.h"
#include "serve/sessions/state_store.h"

namespace laplace {

namespace {

constexpr timeval kConnectTimeout = {2, 0};
constexpr timeval kCommandTimeout = {10, 0};
constexpr size_t kSpareConnections = 8;

// Silence that long after a command that was not answered: what waits for Redis shall not wait for
// it one after another.
constexpr std::chrono::seconds kSilence{2};

// The address is not shown: it may hold a password.
[[noreturn]] void fail_address() {
  fail_input("--state-store must look like redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]");
}

int number_of(std::string_view text) {
  int value = 0;
  const auto got = std::from_chars(text.data(), text.data() + text.size(), value);
  if (got.ec != std::errc() || got.ptr != text.data() + text.size() || value < 0 || value > 65535) {
    fail_address();
  }
  return value;
}

// By Redis: it was started anew, or closes what is idle.
bool was_closed(const redisContext& context) {
  return context.err == REDIS_ERR_EOF ||
         (context.err == REDIS_ERR_IO && (errno == EPIPE || errno == ECONNRESET));
}

}  // namespace

RedisConnections::Address RedisConnections::parse(const std::string& url) {
  std::string_view rest = std::string_view(url).substr(std::strlen("redis://"));
  Address address;
  if (const char* const password = std::getenv("LAPLACE_REDIS_PASSWORD")) {
    address.password = password;
  }
  if (const size_t at = rest.rfind('@'); at != std::string_view::npos) {
    const std::string_view login = rest.substr(0, at);
    const size_t colon = login.find(':');
    if (colon == std::string_view::npos) fail_address();
    address.user = without_escapes(login.substr(0, colon));
    address.password = without_escapes(login.substr(colon + 1));
    rest.remove_prefix(at + 1);
  }
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    if (slash + 1 < rest.size()) address.database = number_of(rest.substr(slash + 1));
    rest = rest.substr(0, slash);
  }
  if (const size_t colon = rest.rfind(':');
      colon != std::string_view::npos && !rest.ends_with(']')) {
    address.port = number_of(rest.substr(colon + 1));
    rest = rest.substr(0, colon);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  address.host = rest.empty() ? "127.0.0.1" : std::string(rest);
  return address;
}

RedisConnections::RedisConnections(const std::string& url) : address_(parse(url)) {}
RedisConnections::~RedisConnections() = default;

std::string RedisConnections::describe() const {
  return cat("Redis at ", address_.host, ":", address_.port);
}

RedisReply RedisConnections::command(const std::vector<std::string_view>& arguments) {
  bool used = false;
  Context context = take(used);
  RedisReply reply = ask(*context, arguments);
  if (reply == nullptr && used && was_closed(*context)) {
    drop_spare();  // the others are as old
    context = take(used);
    reply = ask(*context, arguments);
  }
  if (reply == nullptr) {
    if (!was_closed(*context)) fall_silent();
    throw StoreError(cat("Redis does not answer: ", context->errstr));
  }
  if (reply->type == REDIS_REPLY_ERROR) {
    throw StoreError(cat("Redis refuses: ", std::string_view(reply->str, reply->len)));
  }
  const std::lock_guard lock(mutex_);
  if (spare_.size() < kSpareConnections) spare_.push_back(std::move(context));
  return reply;
}

RedisReply RedisConnections::ask(redisContext& context,
                                 const std::vector<std::string_view>& arguments) {
  std::vector<const char*> texts;
  std::vector<size_t> sizes;
  for (const std::string_view argument : arguments) {
    texts.push_back(argument.data());
    sizes.push_back(argument.size());
  }
  return RedisReply(static_cast<redisReply*>(
      redisCommandArgv(&context, int(texts.size()), texts.data(), sizes.data())));
}

RedisConnections::Context RedisConnections::take(bool& used) {
  used = false;
  {
    const std::lock_guard lock(mutex_);
    if (Clock::now() < silent_until_) throw StoreError("Redis did not answer a moment ago");
    if (!spare_.empty()) {
      used = true;
      Context context = std::move(spare_.back());
      spare_.pop_back();
      return context;
    }
  }
  return connect();
}

RedisConnections::Context RedisConnections::connect() {
  const auto begun = Clock::now();
  Context context(redisConnectWithTimeout(address_.host.c_str(), address_.port, kConnectTimeout));
  if (context == nullptr || context->err != 0) {
    if (Clock::now() - begun > std::chrono::seconds(1)) fall_silent();
    throw StoreError(
        cat("cannot reach ", describe(), ": ", context == nullptr ? "no memory" : context->errstr));
  }
  redisSetTimeout(context.get(), kCommandTimeout);
  redisEnableKeepAlive(context.get());
  if (!address_.user.empty()) {
    greet(*context, {"AUTH", address_.user, address_.password});
  } else if (!address_.password.empty()) {
    greet(*context, {"AUTH", address_.password});
  }
  if (address_.database != 0) greet(*context, {"SELECT", std::to_string(address_.database)});
  return context;
}

void RedisConnections::greet(redisContext& context, const std::vector<std::string_view>& words) {
  const RedisReply reply = ask(context, words);
  if (reply == nullptr) throw StoreError(cat(describe(), ": ", context.errstr));
  if (reply->type == REDIS_REPLY_ERROR) {
    throw StoreError(
        cat(describe(), " refuses ", words[0], ": ", std::string_view(reply->str, reply->len)));
  }
}

void RedisConnections::drop_spare() {
  const std::lock_guard lock(mutex_);
  spare_.clear();
}

void RedisConnections::fall_silent() {
  const std::lock_guard lock(mutex_);
  silent_until_ = Clock::now() + kSilence;
}

}  // namespace laplace
