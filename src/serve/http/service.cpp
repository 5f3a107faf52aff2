// See service.h. Routes and keys are here; what completions do is in completion_handler.cpp.
#include "serve/http/service.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <thread>
#include <utility>

#include "base/log.h"
#include "serve/http/api_error.h"
#include "serve/http/completion_handler.h"
#include "serve/http/info_handler.h"
#include "serve/http/page.h"
#include "serve/http/service_context.h"
#include "serve/http/session_handler.h"
#include "serve/http/work_pool.h"

namespace laplace {

namespace {

enum class Route {
  kNone,
  kPage,
  kHealth,
  kMetrics,
  kVersion,
  kModels,
  kModel,
  kCompletions,
  kChat,
  kTokenize,
  kDetokenize,
  kSessions,
  kSession,
  kFork,
};

struct RouteEntry {
  std::string_view path;
  Route route;
  std::string_view methods;  // "GET, HEAD" or "POST"
};

constexpr std::array kRoutes = {
    RouteEntry{"/", Route::kPage, "GET, HEAD"},
    RouteEntry{"/health", Route::kHealth, "GET, HEAD"},
    RouteEntry{"/metrics", Route::kMetrics, "GET, HEAD"},
    RouteEntry{"/version", Route::kVersion, "GET, HEAD"},
    RouteEntry{"/v1/models", Route::kModels, "GET, HEAD"},
    RouteEntry{"/v1/completions", Route::kCompletions, "POST"},
    RouteEntry{"/v1/chat/completions", Route::kChat, "POST"},
    RouteEntry{"/tokenize", Route::kTokenize, "POST"},
    RouteEntry{"/detokenize", Route::kDetokenize, "POST"},
    RouteEntry{"/v1/sessions", Route::kSessions, "GET, HEAD"},
};

constexpr int kStoreThreads = 4;  // they wait more than they work
constexpr const char* kExposedHeaders = "x-request-id, retry-after";  // to pages

struct Match {
  Route route = Route::kNone;
  std::string_view methods;   // separated by ", "
  std::string_view argument;  // of "/v1/sessions/{id}" and "/v1/models/{id}"
};

// Paths are compared as they were sent: "//v1", "/v1/../x" and escapes are nothing we know.
Match match(std::string_view path) {
  for (const RouteEntry& entry : kRoutes) {
    if (path == entry.path) return {entry.route, entry.methods, {}};
  }
  constexpr std::string_view kSession = "/v1/sessions/", kModel = "/v1/models/", kFork = "/fork";
  if (path.size() > kModel.size() && path.starts_with(kModel)) {
    return {Route::kModel, "GET, HEAD", path.substr(kModel.size())};
  }
  if (!path.starts_with(kSession)) return {};
  std::string_view id = path.substr(kSession.size());
  if (id.ends_with(kFork)) {
    id.remove_suffix(kFork.size());
    return id.find('/') == id.npos ? Match{Route::kFork, "POST", id} : Match{};
  }
  return id.find('/') == id.npos ? Match{Route::kSession, "GET, HEAD, DELETE", id} : Match{};
}

bool allows(std::string_view methods, std::string_view method) {
  while (!methods.empty()) {
    const size_t comma = std::min(methods.find(", "), methods.size());
    if (methods.substr(0, comma) == method) return true;
    methods.remove_prefix(std::min(comma + 2, methods.size()));
  }
  return false;
}

bool is_json(std::string_view content_type) {
  std::string type(content_type.substr(0, content_type.find(';')));
  std::ranges::transform(type, type.begin(), [](char c) { return char(std::tolower(c)); });
  while (type.ends_with(' ')) type.pop_back();
  return type == "application/json";
}

// What a client with a slip in its base address sends: no "/v1", one too many, a whole route, or a
// slash at the end.
std::string hint_for(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  constexpr std::string_view kVersion = "/v1";
  const RouteEntry* best = nullptr;
  for (const RouteEntry& entry : kRoutes) {
    if (entry.path == "/") continue;
    const bool lacks =
        entry.path.starts_with(kVersion) && entry.path.substr(kVersion.size()) == path;
    if (!lacks && !path.ends_with(entry.path)) continue;
    if (best == nullptr || entry.path.size() > best->path.size()) best = &entry;
  }
  if (best == nullptr) return "; see docs/api.md";
  return cat(", did you mean ", best->path, "? A client's base address ends in ", kVersion);
}

// The texts of headers that a page may ask for: names and commas.
bool is_header_list(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == ',' || c == ' ';
  });
}

// "host:port" and "[::1]:port" without the port.
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

bool equal_hosts(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

}  // namespace

struct Service::Impl {
  Impl(Backend& backend, SessionManager& sessions, const ServiceOptions& options)
      : context(backend, sessions, options),
        info(context),
        session_handler(context),
        completions(context),
        store_pool(kStoreThreads),
        pool(options.workers) {
    context.post = [this](std::function<void()> work) { pool.post(std::move(work)); };
    context.post_to_store = [this](std::function<void()> work) {
      store_pool.post(std::move(work));
    };
    context.post_to_store_after = [this](std::chrono::milliseconds delay,
                                         std::function<void()> work) {
      store_pool.post_after(delay, std::move(work));
    };
  }

  // Throws ApiError where the request is refused for its head.
  std::string check_head(const HttpRequest& request, const Match& found) const {
    if (found.route == Route::kHealth) {  // by whatever name: probes ask by address
      check_method(request, found);
      return {};
    }
    check_host(request);
    auto tenant = context.options.keys.tenant(request.authorization);
    if (!tenant) {
      throw ApiError(401, "", "invalid_api_key",
                     request.authorization.empty()
                         ? "an API key is needed: Authorization: Bearer KEY"
                         : "the API key is not known here");
    }
    if (found.route == Route::kNone) {
      throw ApiError(404, "", "not_found",
                     cat("there is nothing at ", quoted(request.path()), hint_for(request.path())));
    }
    check_method(request, found);
    // Browsers send other types to any site without asking it first.
    if (request.method == "POST" && !is_json(request.content_type)) {
      throw ApiError(415, "", "unsupported_media_type",
                     "the body must be JSON: Content-Type: application/json");
    }
    return std::move(*tenant);
  }

  static void check_method(const HttpRequest& request, const Match& found) {
    if (allows(found.methods, request.method)) return;
    throw ApiError(405, "", "method_not_allowed",
                   cat(request.path(), " takes ", found.methods, ", not ", quoted(request.method)));
  }

  // A page of another site that makes its name point to this machine is told apart by the name.
  void check_host(const HttpRequest& request) const {
    const auto& hosts = context.options.allowed_hosts;
    if (hosts.empty()) return;
    const std::string_view host = without_port(request.asked_host());
    if (std::ranges::any_of(
            hosts, [&](const auto& known) { return equal_hosts(without_port(known), host); })) {
      return;
    }
    throw ApiError(421, "", "unknown_host",
                   cat("the host ", quoted(host), " is not served; see --allowed-host"));
  }

  bool cors_allows(const std::string& origin) const {
    const auto& origins = context.options.cors_origins;
    return !origin.empty() &&
           std::ranges::any_of(origins, [&](const auto& o) { return o == "*" || o == origin; });
  }

  static HttpResponse refuse(const Match& found, const ApiError& error) {
    HttpResponse response = error_response(error);
    if (error.status() == 405) response.headers.emplace_back("allow", found.methods);
    if (error.status() == 401) {
      // "Basic" makes a browser ask for the key when the page is opened.
      response.headers.emplace_back("www-authenticate", found.route == Route::kPage
                                                            ? "Basic realm=\"laplace\""
                                                            : "Bearer realm=\"laplace\"");
    }
    return response;
  }

  static HttpResponse preflight(const HttpRequest& request) {
    HttpResponse response{204, "text/plain", "", {}};
    response.headers.emplace_back("access-control-allow-methods", "GET, POST, DELETE");
    // OpenAI's own library adds a dozen of its own. The origin is one that may use the API.
    response.headers.emplace_back("access-control-allow-headers",
                                  is_header_list(request.cors_headers)
                                      ? request.cors_headers
                                      : "authorization, content-type, x-request-id");
    response.headers.emplace_back("access-control-max-age", "600");
    return response;
  }

  void route(const std::shared_ptr<Exchange>& exchange, const Match& found,
             const std::string& tenant) {
    switch (found.route) {
      case Route::kNone:
        break;
      case Route::kPage:
        return exchange->respond(page_response());
      case Route::kHealth:
        return exchange->respond(info.health());
      case Route::kMetrics:
        return exchange->respond(info.metrics());
      case Route::kVersion:
        return exchange->respond(info.version());
      case Route::kModels:
        return exchange->respond(info.models());
      case Route::kModel:
        return exchange->respond(info.model(found.argument));
      case Route::kTokenize:
        return info.tokenize(exchange, tenant);
      case Route::kDetokenize:
        return info.detokenize(exchange, tenant);
      case Route::kCompletions:
        return completions.handle(exchange, tenant, false);
      case Route::kChat:
        return completions.handle(exchange, tenant, true);
      case Route::kSessions:
        return session_handler.list(exchange, tenant);
      case Route::kSession:
        return exchange->request().method == "DELETE"
                   ? session_handler.erase(exchange, tenant, found.argument)
                   : session_handler.show(exchange, tenant, found.argument);
      case Route::kFork:
        return session_handler.fork(exchange, tenant, found.argument);
    }
  }

  ServiceContext context;
  InfoHandler info;
  SessionHandler session_handler;
  CompletionHandler completions;
  WorkPool store_pool;  // the last two: their threads end before what they use
  WorkPool pool;
};

Service::Service(Backend& backend, SessionManager& sessions, const ServiceOptions& options)
    : impl_(std::make_unique<Impl>(backend, sessions, options)) {}

Service::~Service() {
  while (active() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::optional<HttpResponse> Service::precheck(const HttpRequest& request) {
  const Match found = match(request.path());
  if (request.method == "OPTIONS" && impl_->cors_allows(request.origin)) {
    return Impl::preflight(request);
  }
  try {
    impl_->check_head(request, found);
  } catch (const ApiError& error) {
    return Impl::refuse(found, error);
  }
  return std::nullopt;
}

HttpFields Service::fields(const HttpRequest& request) const {
  if (!impl_->cors_allows(request.origin)) return {};
  return {{"access-control-allow-origin", request.origin},
          {"access-control-expose-headers", kExposedHeaders},
          {"vary", "origin"}};
}

void Service::handle(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  const Match found = match(request.path());
  try {
    const std::string tenant = impl_->check_head(request, found);
    impl_->route(exchange, found, tenant);
  } catch (const ApiError& error) {
    exchange->respond(Impl::refuse(found, error));
  } catch (const std::exception& error) {
    log_error("a request failed: ", error.what());
    exchange->respond(error_response(ApiError(500, "", "internal", "the request failed here")));
  }
}

void Service::count(const HttpRequest&, int status, bool dropped) {
  impl_->context.metrics.count_response(status);
  if (dropped) ++impl_->context.metrics.disconnects;
  if (status == 429 || status == 503) ++impl_->context.metrics.rejected;
}

void Service::begin_drain() { impl_->context.draining = true; }

int64_t Service::active() const { return impl_->context.tickets.active(); }

}  // namespace laplace
