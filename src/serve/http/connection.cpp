// See connection.h: its life and reading; connection_answer.cpp answers.
#include "serve/http/connection.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/read.hpp>

#include <algorithm>
#include <utility>

#include "serve/http/api_error.h"
#include "serve/http/reply.h"
#include "serve/http/request_id.h"

namespace laplace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

std::shared_ptr<Connection> Connection::make(Socket socket,
                                             std::shared_ptr<ConnectionContext> context) {
  auto* const made = new Connection(std::move(socket), context);
  ++context->connections;
  return {made, [context = std::move(context)](Connection* gone) {
            delete gone;
            --context->connections;
          }};
}

Connection::Connection(Socket socket, std::shared_ptr<ConnectionContext> context)
    : socket_(std::move(socket)),
      context_(std::move(context)),
      read_timer_(socket_.get_executor()),
      write_timer_(socket_.get_executor()),
      reply_timer_(socket_.get_executor()),
      buffer_(size_t(context_->limits.max_header_bytes) + kReadAhead) {
  ErrorCode ignored;
  const auto endpoint = socket_.remote_endpoint(ignored);
  if (!ignored) peer_ = cat(endpoint);
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  // What the kernel holds for a client that does not read is bounded too.
  socket_.set_option(asio::socket_base::send_buffer_size(256 << 10), ignored);
}

Connection::~Connection() {
  give_body_budget();
  {
    const std::lock_guard lock(context_->mutex);
    context_->open.erase(this);
  }
  if (counted_busy_) --context_->busy;
}

void Connection::start() {
  asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
    {
      const std::lock_guard lock(self->context_->mutex);
      if (self->context_->stopping) return;
      self->context_->open.emplace(self.get(), self);
    }
    self->wait_for_request(self->context_->limits.header_timeout);
  });
}

void Connection::refuse() {
  asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
    self->reject(503, "too many connections are open; try again");
  });
}

void Connection::shut() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->drop(); });
}

void Connection::shut_if_idle() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    ErrorCode ignored;
    if (self->idle_ && self->socket_.available(ignored) == 0) self->drop();
  });
}

void Connection::arm(Timer& timer, std::chrono::milliseconds timeout,
                     void (Connection::*expired)()) {
  timer.expires_after(timeout);
  timer.async_wait([self = shared_from_this(), &timer, expired](ErrorCode error) {
    // A timer that was set anew while this was on its way has not expired.
    if (error || timer.expiry() > Timer::clock_type::now()) return;
    (self.get()->*expired)();
  });
}

void Connection::update_busy() {
  const bool busy = !closed_ && (reply_ != nullptr || out_bytes_ > 0);
  if (busy == std::exchange(counted_busy_, busy)) return;
  context_->busy += busy ? 1 : -1;
}

// Reading

void Connection::wait_for_request(std::chrono::milliseconds timeout) {
  if (closed_) return;
  idle_ = true;
  arm(read_timer_, timeout, &Connection::drop);
  if (!watching_) return begin_request();
  // on_watch goes on: at once when the next request came early, its first bytes or all of it.
  ErrorCode ignored;
  if (buffer_.size() > 0) socket_.cancel(ignored);
}

// A line end before a request means nothing (RFC 9112, 2.2); some clients send one behind a body.
void Connection::begin_request() {
  const auto* const at = static_cast<const char*>(buffer_.data().data());
  const auto* const end = at + buffer_.size();
  const auto* const text = std::find_if(at, end, [](char c) { return c != '\r' && c != '\n'; });
  buffer_.consume(size_t(text - at));
  buffer_.size() > 0 ? read_request() : watch();
}

void Connection::read_request() {
  idle_ = false;
  reading_ = true;
  timed_out_ = false;
  received_ = std::chrono::steady_clock::now();
  parser_.emplace();
  parser_->header_limit(uint32_t(context_->limits.max_header_bytes));
  parser_->body_limit(uint64_t(context_->limits.max_body_bytes));
  arm(read_timer_, context_->limits.header_timeout, &Connection::on_read_timeout);
  http::async_read_header(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](ErrorCode error, size_t) { self->on_header(error); });
}

void Connection::on_read_timeout() {
  timed_out_ = true;
  ErrorCode ignored;
  socket_.cancel(ignored);
}

std::pair<int, std::string> Connection::header_problem() {
  const HttpLimits& limits = context_->limits;
  const auto& head = parser_->get();
  const size_t hosts = head.count(http::field::host);
  const size_t lengths = head.count(http::field::content_length);
  if (int64_t(head.target().size()) > limits.max_target_bytes) {
    return {414, cat("the address is longer than ", limits.max_target_bytes, " bytes")};
  }
  if (lengths > 1 || head[http::field::content_length].find(',') != std::string_view::npos) {
    return {400, "the request has more than one content-length"};
  }
  const auto encoding = head[http::field::content_encoding];
  if (!encoding.empty() && !boost::beast::iequals(encoding, "identity")) {
    return {415, "the body is compressed; send it as it is, without content-encoding"};
  }
  const auto transfer = head[http::field::transfer_encoding];
  if (!transfer.empty() && !boost::beast::iequals(transfer, "chunked")) {
    return {400, "the transfer-encoding must be chunked, or none"};
  }
  if (!transfer.empty() && lengths > 0) {
    return {400, "the request has both a content-length and a transfer-encoding"};
  }
  const auto expect = head[http::field::expect];
  if (!expect.empty() && !boost::beast::iequals(expect, "100-continue")) {
    return {417, "no other expectation than 100-continue can be met"};
  }
  if (hosts > 1 || (hosts == 0 && head.version() >= 11)) {
    return {400, cat("the request names ", hosts, " hosts; it must name one")};
  }
  return {0, {}};
}

HttpRequest Connection::request_head() {
  const auto& head = parser_->get();
  const auto text = [&](http::field field) { return std::string(head[field]); };
  HttpRequest request;
  request.method = std::string(head.method_string());
  request.target = std::string(head.target());
  request.request_id = harmless_request_id(std::string_view(head["x-request-id"]));
  request.authorization = text(http::field::authorization);
  request.content_type = text(http::field::content_type);
  request.origin = text(http::field::origin);
  request.cors_headers = text(http::field::access_control_request_headers);
  request.host = text(http::field::host);
  request.peer = peer_;
  request.received = received_;
  return request;
}

void Connection::on_header(ErrorCode error) {
  if (closed_) return;
  if (error) return on_read_error(error);
  if (const auto [status, message] = header_problem(); status != 0) return reject(status, message);
  HttpRequest head = request_head();
  if (std::optional<HttpResponse> refusal = context_->callbacks.precheck(head)) {
    keep_alive_ = parser_->is_done() && parser_->keep_alive();
    open_exchange(std::move(head));
    send(std::move(*refusal), true);
    return;
  }
  if (parser_->is_done()) return on_body({});
  if (!take_body_budget()) {
    return reject(429, "too many large requests are being read; try again in a second");
  }
  const auto& fields = parser_->get();
  if (fields.version() >= 11 &&
      boost::beast::iequals(fields[http::field::expect], "100-continue")) {
    queue("HTTP/1.1 100 Continue\r\n\r\n");
  }
  read_body();
}

bool Connection::take_body_budget() {
  const auto length = parser_->content_length();
  body_budget_ = length ? int64_t(std::min<uint64_t>(*length, uint64_t(INT64_MAX) / 2))
                        : context_->limits.max_body_bytes;
  if (context_->body_bytes.fetch_add(body_budget_) + body_budget_ <=
      context_->limits.max_body_bytes_total) {
    return true;
  }
  give_body_budget();
  return false;
}

void Connection::give_body_budget() { context_->body_bytes -= std::exchange(body_budget_, 0); }

void Connection::read_body() {
  arm(read_timer_, context_->limits.body_timeout, &Connection::on_read_timeout);
  http::async_read(socket_, buffer_, *parser_,
                   [self = shared_from_this()](ErrorCode error, size_t) { self->on_body(error); });
}

void Connection::on_body(ErrorCode error) {
  if (closed_) return;
  if (error) return on_read_error(error);
  if (parser_->chunked()) {  // now the length is known
    const int64_t length = int64_t(parser_->get().body().size());
    context_->body_bytes -= body_budget_ - length;
    body_budget_ = length;
  }
  HttpRequest request = request_head();
  request.body = std::move(parser_->get().body());
  keep_alive_ = parser_->keep_alive();
  open_exchange(std::move(request));
  context_->callbacks.handler(reply_);
}

void Connection::on_read_error(ErrorCode error) {
  const HttpLimits& limits = context_->limits;
  const bool began = buffer_.size() > 0 || parser_->got_some();
  if (timed_out_) {
    return began ? reject(408, "the request did not come in time") : drop();
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    if (parser_->get().target().empty()) {
      return reject(414, cat("the address is longer than ", limits.max_target_bytes, " bytes"));
    }
    return reject(431, cat("the header is longer than ", limits.max_header_bytes, " bytes"));
  }
  if (error == http::error::body_limit) {
    return reject(413, cat("the body is longer than ", limits.max_body_bytes, " bytes"));
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message) return drop();
  if (error.category() == http::make_error_code(http::error::bad_method).category()) {
    return reject(400, cat("the request is not HTTP: ", error.message()));
  }
  drop();
}

void Connection::reject(int status, const std::string& message) {
  keep_alive_ = false;
  HttpRequest request;
  if (parser_) request = request_head();
  if (request.request_id.empty()) request.request_id = harmless_request_id("");
  open_exchange(std::move(request));
  send(error_response(ApiError(status, "", "", message)), true);
}

}  // namespace laplace
