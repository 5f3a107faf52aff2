// Connections to one Redis, used in turn. Internal to src/serve/sessions.
#pragma once

#include <hiredis/hiredis.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace laplace {

struct FreeRedisReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using RedisReply = std::unique_ptr<redisReply, FreeRedisReply>;

// Thread-safe.
class RedisConnections {
 public:
  // redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]; the password may stand in LAPLACE_REDIS_PASSWORD.
  // Throws Error(kBadInput) for anything else.
  explicit RedisConnections(const std::string& url);
  ~RedisConnections();

  // Throws StoreError when Redis does not answer, or answers with an error. A command may be given
  // twice: where the connection turns out to be closed, its answer may have been lost.
  RedisReply command(const std::vector<std::string_view>& arguments);

  std::string describe() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Address {
    std::string host, user, password;
    int port = 6379, database = 0;
  };
  struct FreeContext {
    void operator()(redisContext* context) const { redisFree(context); }
  };
  using Context = std::unique_ptr<redisContext, FreeContext>;

  static Address parse(const std::string& url);
  static RedisReply ask(redisContext& context, const std::vector<std::string_view>& arguments);
  // `used`: whether it has served before.
  Context take(bool& used);
  Context connect();
  void greet(redisContext& context, const std::vector<std::string_view>& words);
  void drop_spare();
  void fall_silent();

  const Address address_;
  std::mutex mutex_;
  std::vector<Context> spare_;        // under mutex_
  Clock::time_point silent_until_{};  // under mutex_
};

}  // namespace laplace
