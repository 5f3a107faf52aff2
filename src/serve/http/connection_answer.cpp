// See connection.h: answers, and the connection's end.
#include <boost/asio/buffer.hpp>

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

#include "base/strings.h"
#include "serve/http/connection.h"
#include "serve/http/reply.h"

namespace laplace {

namespace asio = boost::asio;

namespace {

constexpr int64_t kLingerBytes = 16 << 20;  // read and thrown away before closing
constexpr std::chrono::milliseconds kLinger{2000};
constexpr size_t kBuffersAWrite = 16;

// Now, as RFC 9110, 5.6.7 writes it. No locale has a say.
std::string http_date() {
  static constexpr std::array kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr std::array kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm t{};
  gmtime_r(&now, &t);
  return strf("%s, %02d %s %d %02d:%02d:%02d GMT", kDays[size_t(t.tm_wday)], t.tm_mday,
              kMonths[size_t(t.tm_mon)], t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

}  // namespace

void Connection::open_exchange(HttpRequest request) {
  reading_ = false;
  read_timer_.cancel();
  chunked_ = whole_ = finished_ = false;
  record_ = {};
  more_fields_.clear();
  for (const auto& [name, value] : context_->callbacks.fields(request)) {
    more_fields_ += cat(name, ": ", value, "\r\n");
  }
  reply_ = std::make_shared<Reply>(shared_from_this(), std::move(request));
  update_busy();
  watch();
}

void Connection::watch() {
  if (watching_ || closed_ || buffer_.size() >= kReadAhead) return;
  watching_ = true;
  socket_.async_read_some(
      buffer_.prepare(4096),
      [self = shared_from_this()](ErrorCode error, size_t bytes) { self->on_watch(error, bytes); });
}

void Connection::on_watch(ErrorCode error, size_t bytes) {
  watching_ = false;
  if (closed_) return;
  if (error == asio::error::operation_aborted && idle_) return begin_request();
  if (error) {
    // A client that has read its answer may close before we hear that it was sent: writing tells.
    if (!finished_ || !writing_) drop();
    return;
  }
  if (closing_) {
    lingered_bytes_ += int64_t(bytes);
    return drain_input();
  }
  buffer_.commit(bytes);
  idle_ ? begin_request() : watch();
}

std::string Connection::head_of(const HttpResponse& response, bool whole) const {
  const bool http_1_0 = parser_ && parser_->get().version() < 11;
  std::string head =
      cat("HTTP/1.1 ", response.status, " ", http_reason(response.status),
          "\r\nserver: laplace\r\ndate: ", http_date(), "\r\ncontent-type: ", response.content_type,
          "\r\nx-content-type-options: nosniff\r\nx-request-id: ", reply_->request().request_id,
          "\r\n");
  const bool has_length = whole && response.status != 204;
  if (has_length) head += cat("content-length: ", response.body.size(), "\r\n");
  if (!whole && chunked_) head += "transfer-encoding: chunked\r\n";
  if (!keep_alive_) head += "connection: close\r\n";
  if (keep_alive_ && http_1_0) head += "connection: keep-alive\r\n";
  for (const auto& [name, value] : response.headers) head += cat(name, ": ", value, "\r\n");
  return head + more_fields_ + "\r\n";
}

void Connection::send(HttpResponse response, bool whole) {
  if (context_->draining) keep_alive_ = false;
  if (!whole) {
    chunked_ = parser_->get().version() >= 11;
    if (!chunked_) keep_alive_ = false;  // the end of the connection is the end of the answer
  }
  whole_ = whole;
  record_.status = response.status;
  queue(head_of(response, whole));
  if (whole) {
    const bool head_only = reply_->request().method == "HEAD";
    if (!response.body.empty() && !head_only) queue(std::move(response.body));
    finished_ = true;
  } else if (!response.body.empty()) {
    send_piece(std::move(response.body));
  }
}

void Connection::send_piece(std::string bytes) {
  if (bytes.empty()) return;
  if (!chunked_) return queue(std::move(bytes));
  queue(strf("%zx\r\n", bytes.size()) + bytes + "\r\n");
}

void Connection::send_end() {
  finished_ = true;
  if (chunked_) return queue("0\r\n\r\n");
  if (out_bytes_ == 0) exchange_over();
}

void Connection::queue(std::string bytes) {
  if (closed_) return;
  out_bytes_ += int64_t(bytes.size());
  unread_bytes_ += counted(bytes);
  if (!whole_ && unread_bytes_ > context_->limits.max_output_bytes) return drop();
  record_.bytes += int64_t(bytes.size());
  out_.push_back(std::move(bytes));
  update_busy();
  write_some();
}

// A piece that is over the limit by itself (the echo of a prompt) shows no slow reader.
int64_t Connection::counted(const std::string& piece) const {
  const auto size = int64_t(piece.size());
  return size > context_->limits.max_output_bytes ? 0 : size;
}

void Connection::write_some() {
  if (writing_ || out_.empty() || closed_) return;
  writing_ = true;
  arm(write_timer_, context_->limits.write_timeout, &Connection::drop);
  std::vector<asio::const_buffer> buffers;
  for (size_t i = 0; i < std::min(out_.size(), kBuffersAWrite); ++i) {
    const size_t skip = i == 0 ? out_offset_ : 0;
    buffers.emplace_back(out_[i].data() + skip, out_[i].size() - skip);
  }
  socket_.async_write_some(buffers, [self = shared_from_this()](ErrorCode error, size_t bytes) {
    self->on_written(error, bytes);
  });
}

void Connection::on_written(ErrorCode error, size_t bytes) {
  writing_ = false;
  write_timer_.cancel();
  if (closed_) return;
  if (error) return drop();
  out_bytes_ -= int64_t(bytes);
  for (out_offset_ += bytes; !out_.empty() && out_offset_ >= out_.front().size();) {
    out_offset_ -= out_.front().size();
    unread_bytes_ -= counted(out_.front());
    out_.pop_front();
  }
  if (!out_.empty()) return write_some();
  if (finished_ && reply_) exchange_over();
  update_busy();
}

void Connection::report() {
  if (!reply_) return;
  const auto taken = std::chrono::steady_clock::now() - reply_->request().received;
  record_.seconds = std::chrono::duration<double>(taken).count();
  context_->access(reply_->request(), record_);
}

void Connection::exchange_over() {
  report();
  give_body_budget();
  reply_timer_.cancel();
  reply_->over();
  reply_.reset();
  update_busy();
  // A client that was not told of the connection's end may send on it: it waits for that, also
  // while the server drains.
  keep_alive_ ? wait_for_request(context_->limits.idle_timeout) : linger();
}

void Connection::linger() {
  closing_ = true;
  ErrorCode ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  arm(read_timer_, kLinger, &Connection::drop);
  if (!watching_) drain_input();
}

void Connection::drain_input() {
  if (lingered_bytes_ > kLingerBytes) return drop();
  lingered_.resize(kReadAhead);
  watching_ = true;
  socket_.async_read_some(
      asio::buffer(lingered_),
      [self = shared_from_this()](ErrorCode error, size_t bytes) { self->on_watch(error, bytes); });
}

void Connection::drop() {
  if (std::exchange(closed_, true)) return;
  read_timer_.cancel();
  write_timer_.cancel();
  reply_timer_.cancel();
  ErrorCode ignored;
  socket_.close(ignored);
  out_bytes_ = 0;
  if (reply_) {
    record_.dropped = true;
    report();
    give_body_budget();
    const std::shared_ptr<Reply> reply = std::exchange(reply_, nullptr);
    reply->gone();
  }
  update_busy();
}

}  // namespace laplace
