// The Exchange of a Connection. Internal to src/serve/http.
#pragma once

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>

#include <memory>
#include <utility>

#include "serve/http/connection.h"

namespace laplace {

// Everything it is told goes to the connection's strand and is done there, unless the exchange is
// over by then.
class Connection::Reply : public Exchange, public std::enable_shared_from_this<Connection::Reply> {
 public:
  Reply(std::shared_ptr<Connection> connection, HttpRequest request)
      : connection_(std::move(connection)), request_(std::move(request)) {}

  const HttpRequest& request() const override { return request_; }

  void post(std::function<void()> work) override {
    boost::asio::post(connection_->socket_.get_executor(), std::move(work));
  }

  void post_after(std::chrono::milliseconds delay, std::function<void()> work) override {
    on_strand([delay, work = std::move(work)](Connection& connection) mutable {
      connection.reply_timer_.expires_after(delay);
      connection.reply_timer_.async_wait(
          [self = connection.shared_from_this(), work = std::move(work)](ErrorCode error) {
            if (!error) work();
          });
    });
  }

  void release_body() override {
    std::string().swap(request_.body);
    on_strand([](Connection& connection) { connection.give_body_budget(); });
  }

  void respond(HttpResponse response) override {
    on_strand([response = std::move(response)](Connection& connection) mutable {
      if (connection.record_.status == 0) connection.send(std::move(response), true);
    });
  }

  void open_stream(HttpResponse head) override {
    on_strand([head = std::move(head)](Connection& connection) mutable {
      if (connection.record_.status == 0) connection.send(std::move(head), false);
    });
  }

  void write(std::string bytes) override {
    on_strand([bytes = std::move(bytes)](Connection& connection) mutable {
      if (!connection.finished_) connection.send_piece(std::move(bytes));
    });
  }

  void finish() override {
    on_strand([](Connection& connection) {
      if (!connection.finished_) connection.send_end();
    });
  }

  void on_closed(std::function<void()> callback) override {
    boost::asio::dispatch(connection_->socket_.get_executor(),
                          [self = shared_from_this(), callback = std::move(callback)]() mutable {
                            if (self->gone_) return callback();
                            if (!self->over_) self->on_closed_ = std::move(callback);
                          });
  }

  void annotate(Json fields) override {
    on_strand([fields = std::move(fields)](Connection& connection) mutable {
      connection.record_.fields.update(fields);
    });
  }

  // On the strand: the answer has been written, or cannot be.
  void over() {
    over_ = true;
    on_closed_ = nullptr;
  }
  void gone() {
    gone_ = true;
    if (on_closed_) std::exchange(on_closed_, nullptr)();
  }

 private:
  template <class Work>
  void on_strand(Work work) {
    boost::asio::dispatch(connection_->socket_.get_executor(),
                          [self = shared_from_this(), work = std::move(work)]() mutable {
                            Connection& connection = *self->connection_;
                            if (connection.reply_ == self && !connection.closed_) work(connection);
                          });
  }

  const std::shared_ptr<Connection> connection_;
  HttpRequest request_;
  std::function<void()> on_closed_;
  bool over_ = false;
  bool gone_ = false;
};

}  // namespace laplace
