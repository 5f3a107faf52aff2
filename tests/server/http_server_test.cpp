// The listener alone, with a client on a socket.
#include "serve/http/http_server.h"

#include <gtest/gtest.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace laplace {
namespace {

using boost::asio::ip::tcp;

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest()
      : server_(HttpLimits{},
                {.precheck = [](const HttpRequest&) { return std::nullopt; },
                 .fields =
                     [](const HttpRequest&) {
                       return HttpFields{{"x-kind", "test"}};
                     },
                 .handler =
                     [this](std::shared_ptr<Exchange> exchange) { handler_(std::move(exchange)); }},
                [](const HttpRequest&, const AccessRecord&) {}),
        port_(server_.listen("127.0.0.1", 0)) {}

  // A client that has asked for "/" and waits.
  tcp::socket ask() {
    tcp::socket client(io_);
    client.connect({boost::asio::ip::make_address("127.0.0.1"), port_});
    ask_on(client);
    return client;
  }
  static void ask_on(tcp::socket& client) {
    constexpr std::string_view kRequest = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    boost::asio::write(client, boost::asio::buffer(kRequest));
  }
  // What it is told until the connection ends.
  static std::string hear(tcp::socket& client) {
    std::string heard;
    boost::system::error_code error;
    while (!error) {
      char piece[4096];
      heard.append(piece, client.read_some(boost::asio::buffer(piece), error));
    }
    return heard;
  }

  std::function<void(std::shared_ptr<Exchange>)> handler_;
  HttpServer server_;
  uint16_t port_;
  boost::asio::io_context io_;
};

TEST_F(HttpServerTest, Answers) {
  handler_ = [](const std::shared_ptr<Exchange>& exchange) {
    exchange->respond({200, "text/plain", "here", {}});
  };
  server_.begin_drain();  // the connection ends behind its answer
  tcp::socket client = ask();
  const std::string heard = hear(client);
  EXPECT_TRUE(heard.starts_with("HTTP/1.1 200 OK\r\n")) << heard;
  EXPECT_TRUE(heard.ends_with("\r\n\r\nhere")) << heard;
  EXPECT_NE(heard.find("\r\nx-kind: test\r\n"), heard.npos) << heard;
}

// A client whose answer began before the server drains was not told that its connection ends: what
// it sends next is answered, and then it ends.
TEST_F(HttpServerTest, DrainAnswersWhoWasNotTold) {
  handler_ = [&](const std::shared_ptr<Exchange>& exchange) {
    exchange->open_stream({200, "text/event-stream", "piece", {}});
    exchange->post([this] { server_.begin_drain(); });
    exchange->finish();
  };
  tcp::socket client = ask();
  char byte = 0;
  std::string heard;
  while (!heard.ends_with("\r\n0\r\n\r\n")) {
    boost::asio::read(client, boost::asio::buffer(&byte, 1));
    heard += byte;
  }
  EXPECT_EQ(heard.find("connection: close"), heard.npos) << heard;
  ask_on(client);
  const std::string next = hear(client);
  EXPECT_TRUE(next.starts_with("HTTP/1.1 200 OK\r\n")) << next;
  EXPECT_NE(next.find("connection: close"), next.npos) << next;
}

// A thread that holds an exchange when the server stops holds the connection's timers: stop() waits
// for it. ./dev sanitize sees what is touched too late.
TEST_F(HttpServerTest, StopWaitsForWhoHoldsAnExchange) {
  std::shared_ptr<Exchange> held;
  std::atomic<bool> asked = false, let_go = false;
  handler_ = [&](std::shared_ptr<Exchange> exchange) {
    held = std::move(exchange);
    asked = true;
  };
  tcp::socket client = ask();
  while (!asked) std::this_thread::yield();
  std::thread holder([&] {
    hear(client);  // the server has begun to stop
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    held->respond({200, "text/plain", "too late", {}});
    let_go = true;
    held.reset();
  });
  server_.stop();
  EXPECT_TRUE(let_go);
  EXPECT_EQ(server_.connections(), 0);
  holder.join();
}

}  // namespace
}  // namespace laplace
