// See session_handler.h.
#include "serve/http/session_handler.h"

#include <algorithm>
#include <utility>

#include "serve/http/handlers_common.h"
#include "serve/http/request_fields.h"
#include "serve/http/request_id.h"

namespace laplace {

namespace {

[[noreturn]] void not_found(std::string_view id) {
  throw ApiError(404, "session", "session_not_found", cat("there is no session ", quoted(id)));
}

[[noreturn]] void busy() {
  throw ApiError(409, "session", "session_busy",
                 "the session is in use by a request; wait for its reply");
}

HttpResponse json_response(const Json& json) {
  return {200, "application/json", to_line(json), {}};
}

}  // namespace

template <class Body>
void SessionHandler::work(const std::shared_ptr<Exchange>& exchange, const std::string& tenant,
                          Body body) {
  context_.post_to_store(
      [exchange, ticket = context_.tickets.take(tenant), body = std::move(body)] {
        answer_errors(exchange, [&] { exchange->respond(body()); });
      });
}

void SessionHandler::list(const std::shared_ptr<Exchange>& exchange, const std::string& tenant) {
  work(exchange, tenant, [this, tenant] {
    std::vector<SessionInfo> sessions = context_.sessions.list(tenant);
    std::ranges::sort(sessions, [](const SessionInfo& a, const SessionInfo& b) {
      return a.updated != b.updated ? a.updated > b.updated : a.name < b.name;
    });
    Json data = Json::array();
    for (const SessionInfo& session : sessions) data.push_back(session.to_json());
    return json_response({{"object", "list"}, {"data", std::move(data)}});
  });
}

void SessionHandler::show(const std::shared_ptr<Exchange>& exchange, const std::string& tenant,
                          std::string_view id) {
  check_session_name(id, "session");
  work(exchange, tenant, [this, key = SessionKey{tenant, std::string(id)}] {
    const auto info = found(key);
    if (!info) not_found(key.name);
    return json_response(info->to_json());
  });
}

// What the store knows of it. Throws ApiError when it cannot be read.
std::optional<SessionInfo> SessionHandler::found(const SessionKey& key) {
  try {
    return context_.sessions.find(key);
  } catch (const StoreError&) {
    throw;
  } catch (const Error& error) {
    throw ApiError(409, "session", "session_refused", error.what());
  }
}

void SessionHandler::erase(const std::shared_ptr<Exchange>& exchange, const std::string& tenant,
                           std::string_view id) {
  check_session_name(id, "session");
  work(exchange, tenant, [this, key = SessionKey{tenant, std::string(id)}] {
    switch (context_.sessions.erase(key)) {
      case EraseResult::kBusy:
        busy();
      case EraseResult::kNotFound:
        not_found(key.name);
      case EraseResult::kDone:
        break;
    }
    return json_response({{"id", key.name}, {"object", "session"}, {"deleted", true}});
  });
}

void SessionHandler::fork(const std::shared_ptr<Exchange>& exchange, const std::string& tenant,
                          std::string_view id) {
  check_session_name(id, "session");
  work(exchange, tenant, [this, exchange, key = SessionKey{tenant, std::string(id)}] {
    std::string name = random_name("s-");
    if (!exchange->request().body.empty()) {
      RequestFields fields(exchange->request().body);
      if (const auto given = fields.text("name")) name = std::string(*given);
      fields.finish();
    }
    check_session_name(name, "name");
    switch (context_.sessions.fork(key, name)) {
      case SessionManager::ForkResult::kNotFound:
        not_found(key.name);
      case SessionManager::ForkResult::kExists:
        throw ApiError(
            409, "name", "session_exists",
            cat("there is a session ", name, " already; delete it or take another name"));
      case SessionManager::ForkResult::kRefused:
        throw ApiError(409, "session", "session_refused",
                       cat("the state of the session ", key.name,
                           " is damaged, or another model's; delete it, or begin anew"));
      case SessionManager::ForkResult::kBusy:
        busy();
      case SessionManager::ForkResult::kDone:
        break;
    }
    const auto info = context_.sessions.find({key.tenant, name});
    if (!info) not_found(name);
    return json_response(info->to_json());
  });
}

}  // namespace laplace
