// One TCP connection: requests one after another, each an Exchange. Internal to src/serve/http; see
// http_server.h for the face.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "serve/http/http_server.h"

namespace laplace {

class Connection;

// What all connections of a server share.
struct ConnectionContext {
  HttpLimits limits;
  HttpCallbacks callbacks;
  AccessCallback access;
  std::atomic<bool> draining{false};
  std::atomic<int64_t> connections{0};  // that exist; an exchange keeps its own
  std::atomic<int64_t> body_bytes{0};   // promised or read, by requests whose body is being read
  std::atomic<int64_t> busy{0};         // connections with an exchange or unsent bytes
  std::mutex mutex;
  bool stopping = false;                                            // under mutex
  std::unordered_map<Connection*, std::weak_ptr<Connection>> open;  // under mutex
};

// All members run on the strand of the socket, but those of the Exchange it makes.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;  // its executor is a strand

  // Counted in context->connections until all of it is gone, its timers too.
  static std::shared_ptr<Connection> make(Socket socket,
                                          std::shared_ptr<ConnectionContext> context);
  ~Connection();

  // The first call: reads a request.
  void start();
  // Answers 503 and closes.
  void refuse();
  // Closes at once, or if no request is under way, nor here and unread. From any thread.
  void shut();
  void shut_if_idle();

 private:
  class Reply;
  Connection(Socket socket, std::shared_ptr<ConnectionContext> context);
  static constexpr size_t kReadAhead = 64 << 10;  // bytes of a client that sends early
  using ErrorCode = boost::system::error_code;
  using Timer = boost::asio::steady_timer;

  void read_request();  // its header; on_header goes on
  void wait_for_request(std::chrono::milliseconds timeout);
  void begin_request();  // of what has come while idle
  void on_header(ErrorCode error);
  // The status and sentence that refuse a header, or 0.
  std::pair<int, std::string> header_problem();
  void read_body();
  void on_body(ErrorCode error);
  void on_read_error(ErrorCode error);
  HttpRequest request_head();
  void open_exchange(HttpRequest request);
  // Nothing of the request is used; the connection ends behind the answer.
  void reject(int status, const std::string& message);
  bool take_body_budget();
  void give_body_budget();

  // While an exchange is open: notices that the client has gone, keeps what it sends early.
  void watch();
  void on_watch(ErrorCode error, size_t bytes);

  void send(HttpResponse response, bool whole);
  std::string head_of(const HttpResponse& response, bool whole) const;
  void send_piece(std::string bytes);
  void send_end();
  void queue(std::string bytes);
  int64_t counted(const std::string& piece) const;
  void write_some();
  void on_written(ErrorCode error, size_t bytes);
  void exchange_over();
  void report();
  void linger();
  void drain_input();
  // Ends the connection at once; the exchange, if any, is told.
  void drop();
  void arm(Timer& timer, std::chrono::milliseconds timeout, void (Connection::*expired)());
  void on_read_timeout();
  void update_busy();

  Socket socket_;
  const std::shared_ptr<ConnectionContext> context_;
  Timer read_timer_;
  Timer write_timer_;
  Timer reply_timer_;  // of the open exchange
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  std::string peer_;
  std::chrono::steady_clock::time_point received_;  // the first byte of the request, about

  std::shared_ptr<Reply> reply_;  // the open exchange
  std::string more_fields_;       // of its answer's header, lines
  bool reading_ = false;          // a request is being read
  bool timed_out_ = false;        // and took too long
  bool keep_alive_ = false;
  bool chunked_ = false;
  bool whole_ = false;     // the answer is made in one piece: no bound on what is unread
  bool finished_ = false;  // all of the answer is queued
  bool watching_ = false;
  bool idle_ = false;     // waits for the next request
  bool closing_ = false;  // lingers, then closes
  bool closed_ = false;
  bool counted_busy_ = false;
  int64_t body_budget_ = 0;
  int64_t lingered_bytes_ = 0;
  std::vector<char> lingered_;

  std::deque<std::string> out_;
  size_t out_offset_ = 0;     // of out_.front(), written already
  int64_t out_bytes_ = 0;     // not written yet
  int64_t unread_bytes_ = 0;  // of these what counts against the limit
  bool writing_ = false;

  AccessRecord record_;  // of the exchange, or of the request that was refused
};

}  // namespace laplace
