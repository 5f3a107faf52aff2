// See http_server.h.
#include "serve/http/http_server.h"

#include <sys/resource.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "serve/http/connection.h"

namespace laplace {

namespace asio = boost::asio;
using asio::ip::tcp;

std::string_view http_reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 507:
      return "Insufficient Storage";
    default:
      return status < 400 ? "OK" : status < 500 ? "Bad Request" : "Internal Server Error";
  }
}

namespace {

// As many descriptors as we may have: each connection takes one.
void raise_descriptor_limit() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

struct HttpServer::Impl {
  explicit Impl(int threads)
      : io(threads),
        work(io.get_executor()),
        acceptor(asio::make_strand(io)),
        retry(acceptor.get_executor()) {}

  void take(tcp::socket socket) {
    const bool full = context->connections >= context->limits.max_connections;
    const auto connection = Connection::make(std::move(socket), context);
    full ? connection->refuse() : connection->start();
  }

  void accept() {
    acceptor.async_accept(asio::make_strand(io),
                          [this](boost::system::error_code error, tcp::socket socket) {
                            if (!error) take(std::move(socket));
                            if (error == asio::error::operation_aborted || !acceptor.is_open())
                              return;
                            if (!error) return accept();
                            // No descriptor is free: those that wait are taken when one is.
                            retry.expires_after(std::chrono::milliseconds(100));
                            retry.async_wait([this](boost::system::error_code stopped) {
                              if (!stopped) accept();
                            });
                          });
  }

  // Takes those that have connected, and no more; idle ones end. On the acceptor's strand.
  void close_door() {
    boost::system::error_code error;
    acceptor.non_blocking(true, error);
    while (!error) {
      tcp::socket socket(asio::make_strand(io));
      acceptor.accept(socket, error);
      if (!error) take(std::move(socket));
    }
    acceptor.close(error);
    retry.cancel();
    for (const auto& connection : open_connections(false)) connection->shut_if_idle();
  }

  // To be called on outside the mutex: the end of a connection, whose last owner may be the caller,
  // takes it. `last`: none will be added from now on.
  std::vector<std::shared_ptr<Connection>> open_connections(bool last) const {
    std::vector<std::shared_ptr<Connection>> open;
    const std::lock_guard lock(context->mutex);
    if (last) context->stopping = true;
    for (const auto& [key, weak] : context->open) {
      if (auto connection = weak.lock()) open.push_back(std::move(connection));
    }
    return open;
  }

  std::shared_ptr<ConnectionContext> context = std::make_shared<ConnectionContext>();
  asio::io_context io;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  std::vector<std::thread> threads;
  bool stopped = false;
};

HttpServer::HttpServer(const HttpLimits& limits, HttpCallbacks callbacks, AccessCallback access)
    : impl_(std::make_shared<Impl>(limits.threads)) {
  raise_descriptor_limit();
  impl_->context->limits = limits;
  impl_->context->callbacks = std::move(callbacks);
  impl_->context->access = std::move(access);
}

HttpServer::~HttpServer() { stop(); }

uint16_t HttpServer::listen(const std::string& host, uint16_t port) {
  boost::system::error_code error;
  const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
  if (error) {
    fail_input("--host ", quoted(host), " is not an address; give one such as 127.0.0.1 or ::");
  }
  const tcp::endpoint endpoint(address, port);
  tcp::acceptor& acceptor = impl_->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(4096, error);
  if (error) {
    fail_input("cannot listen on ", host, " port ", port, ": ", error.message(),
               "; give another --host or --port (0 picks a free one)");
  }
  impl_->accept();
  for (int i = 0; i < impl_->context->limits.threads; ++i) {
    impl_->threads.emplace_back([impl = impl_.get()] { impl->io.run(); });
  }
  return acceptor.local_endpoint().port();
}

void HttpServer::begin_drain() { impl_->context->draining = true; }

void HttpServer::stop(std::chrono::milliseconds grace) {
  if (std::exchange(impl_->stopped, true)) return;
  constexpr std::chrono::milliseconds kPoll{1}, kOnItsWay{50};
  asio::post(impl_->acceptor.get_executor(), [impl = impl_.get()] { impl->close_door(); });
  if (grace > kPoll && !impl_->threads.empty()) {
    std::this_thread::sleep_for(std::min(grace, kOnItsWay));
    const auto end = std::chrono::steady_clock::now() + grace;
    while (impl_->context->busy > 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(kPoll);
    }
  }
  asio::post(impl_->acceptor.get_executor(), [impl = impl_.get()] {
    for (const auto& connection : impl->open_connections(true)) connection->shut();
  });
  // Who still holds an exchange holds its connection, and with it timers of `io`.
  for (int waited = 1; impl_->context->connections > 0; ++waited) {
    std::this_thread::sleep_for(kPoll);
    if (waited % 10'000 == 0) {
      log_warning("waiting for ", impl_->context->connections, " connections that are in use");
    }
  }
  impl_->work.reset();
  for (std::thread& thread : impl_->threads) thread.join();
}

int64_t HttpServer::connections() const { return impl_->context->connections; }

}  // namespace laplace
