// See run_server.h.
#include "serve/http/run_server.h"

#include <cstdio>
#include <ctime>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"

namespace laplace {

namespace {

constexpr std::chrono::milliseconds kPoll{20};
constexpr std::chrono::milliseconds kLastWrites{10'000};

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// A line of JSON for each request: who, what, how it ended, how long it took; never its text.
class AccessLog {
 public:
  explicit AccessLog(const std::string& place) {
    if (place == "off") return;
    if (place == "-") {
      file_ = stderr;
      return;
    }
    owned_.reset(std::fopen(place.c_str(), "ae"));
    file_ = owned_.get();
    if (file_ == nullptr) fail_errno(cat("cannot write the access log ", place));
  }

  void write(const HttpRequest& request, const AccessRecord& record) {
    if (file_ == nullptr) return;
    Json line = {{"time", now()},
                 {"peer", request.peer},
                 {"method", request.method.substr(0, 16)},
                 {"path", std::string(request.path().substr(0, 256))},
                 {"status", record.status},
                 {"seconds", double(int64_t(record.seconds * 1e6)) / 1e6},
                 {"bytes", record.bytes},
                 {"request_id", request.request_id}};
    if (record.dropped) line["dropped"] = true;
    if (record.fields.is_object()) line.update(record.fields);
    const std::string text = to_line(line) + "\n";
    const std::lock_guard lock(mutex_);
    std::fwrite(text.data(), 1, text.size(), file_);
    std::fflush(file_);
  }

 private:
  static std::string now() {
    timespec time{};
    ::clock_gettime(CLOCK_REALTIME, &time);
    std::tm parts{};
    ::gmtime_r(&time.tv_sec, &parts);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    return strf("%s.%03dZ", text, int(time.tv_nsec / 1'000'000));
  }

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> owned_;
  std::FILE* file_ = nullptr;
  std::mutex mutex_;
};

// Until `done` holds; false after `timeout`.
template <class Done>
bool wait_until(std::chrono::milliseconds timeout, const Done& done) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!done()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

}  // namespace

void check_exposure(const ServerOptions& options) {
  if (is_loopback(options.host) || !options.service.keys.empty() || options.insecure) return;
  fail_input("--host ", options.host, " lets other machines in, and no API key is set; give ",
             "--api-key-file or LAPLACE_API_KEY, or say --insecure");
}

void run_server(Backend& backend, SessionManager& sessions, const ServerOptions& options,
                const std::function<void(const std::string& address)>& on_listening) {
  check_exposure(options);
  ServiceOptions service_options = options.service;
  // Without a key, the name in the Host header is what tells a page of another site from ours.
  if (service_options.allowed_hosts.empty() && service_options.keys.empty() &&
      is_loopback(options.host)) {
    service_options.allowed_hosts = {"localhost", "127.0.0.1", "[::1]", options.host, ""};
  }
  AccessLog log(options.access_log);
  Service service(backend, sessions, service_options);
  HttpServer server(
      options.http,
      {.precheck = [&](const HttpRequest& request) { return service.precheck(request); },
       .fields = [&](const HttpRequest& request) { return service.fields(request); },
       .handler = [&](std::shared_ptr<Exchange> exchange) { service.handle(std::move(exchange)); }},
      [&](const HttpRequest& request, const AccessRecord& record) {
        service.count(request, record.status, record.dropped);
        log.write(request, record);
      });
  const uint16_t port = server.listen(options.host, options.port);
  const bool v6 = options.host.find(':') != std::string::npos;
  on_listening(cat("http://", v6 ? "[" : "", options.host, v6 ? "]" : "", ":", port));

  while (!stop_requested()) std::this_thread::sleep_for(kPoll);

  const Stopwatch watch;
  log_info("stopping: ", service.active(), " requests have ",
           human_duration(double(options.drain_time.count()) / 1000), " to end");
  service.begin_drain();
  server.begin_drain();
  const bool ended = wait_until(options.drain_time, [&] { return service.active() == 0; });
  if (!ended) log_warning(service.active(), " requests are ended by an error");
  backend.stop();
  wait_until(kLastWrites, [&] { return service.active() == 0; });
  if (!sessions.flush(kLastWrites)) log_error("some sessions were not saved in time");
  server.stop(std::chrono::seconds(2));
  // A save that is still on its way tells its exchange, which must be there.
  while (!sessions.flush(kLastWrites)) log_warning("waiting for the session store");
  log_info("stopped after ", human_duration(watch.seconds()));
}

}  // namespace laplace
