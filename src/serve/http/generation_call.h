// One completion request from the engine's queue to the last byte of its answer.
//
// The engine reports on its own thread and must not wait: reports are queued here, and taken up in
// the exchange's sequence, where text becomes JSON and bytes. Internal to src/serve/http.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "serve/http/api_error.h"
#include "serve/http/completion_request.h"
#include "serve/http/exchange.h"
#include "serve/http/prompt_plan.h"
#include "serve/http/reply_format.h"
#include "serve/http/service_context.h"

namespace laplace {

class GenerationCall : public std::enable_shared_from_this<GenerationCall> {
 public:
  // `over` is called once, when nothing of the call is left in the engine or the store.
  GenerationCall(ServiceContext& context, std::shared_ptr<Exchange> exchange,
                 CompletionRequest request, RequestPlan plan, std::function<void()> over);
  ~GenerationCall();

  // Hands everything to the engine. Throws ApiError when that refuses; then there will be no
  // answer from here.
  void start();

 private:
  class PromptSink;
  struct Report {
    enum class Kind { kPrompt, kToken, kFinish } kind;
    int choice = 0;
    std::vector<TokenResult> tokens;  // kPrompt all of them, kToken one
    std::string text;
    Finish finish;
    std::chrono::steady_clock::time_point at;
  };
  struct Choice {
    std::string text;    // of a whole answer, or of a session's reply
    bool begun = false;  // its first chunk, or its echo, is out
    std::optional<CompletionLogProbs> legacy;
    std::vector<TokenResult> tokens;  // for the log-probabilities of a chat, whole
    bool finished = false;
    Finish finish;
    std::optional<std::chrono::steady_clock::time_point> last_token;
  };

  Request engine_request(const PromptPlan& plan) const;
  void cancel();

  // On the engine's thread.
  void report(Report report);
  void keep_prefix(size_t prompt, int64_t offset, std::shared_ptr<const SequenceSnapshot> state);

  // In the exchange's sequence; where a prompt's log-probabilities are shown on a worker, one at a
  // time, for that may take long.
  void take_reports();
  void send(std::string out);  // a piece of the stream
  void keep_awake();
  void take(Report& report, std::string& out);
  void begin(int index, Choice& choice, std::string& out);
  Json token_log_probs(Choice& choice, const TokenResult& token);
  void on_token(int index, Choice& choice, Report& report, std::string& out);
  void on_finish(int index, Choice& choice, Report& report, std::string& out);
  void all_finished();
  bool commit_session();
  void drop_lease();
  void conclude();
  void answer_error(const ApiError& error);
  std::optional<ApiError> failure() const;
  void answer_whole();
  Usage usage() const;  // so far
  void observe();

  ServiceContext& context_;
  const std::shared_ptr<Exchange> exchange_;
  const CompletionRequest request_;
  RequestPlan plan_;
  std::function<void()> over_;
  const ReplyFormat format_;

  std::mutex mutex_;
  std::vector<RequestId> ids_;  // under mutex_, as the rest of this block
  std::vector<Report> reports_;
  bool scheduled_ = false;  // take_reports() is on its way
  bool cancelled_ = false;
  bool abandoned_ = false;                             // start() has failed
  std::shared_ptr<const SequenceSnapshot> end_state_;  // of a session

  // Where a prompt's log-probabilities are shown: what take_reports() uses, and by prompt those.
  const bool scoring_;
  std::mutex taking_;
  std::vector<std::vector<TokenResult>> prompt_tokens_;
  std::string held_;  // of a stream, until all its choices have begun

  std::vector<Choice> choices_;
  size_t unfinished_ = 0;
  int64_t generated_ = 0;  // tokens, of all choices
  bool stream_open_ = false;
  bool quiet_ = true;                 // nothing was sent since the last heartbeat
  std::optional<StreamDecoder> fed_;  // of a session: what the state has been fed, as text
  std::string fed_text_;
  std::chrono::steady_clock::time_point submitted_;
  std::optional<std::chrono::steady_clock::time_point> first_token_, last_token_;
};

}  // namespace laplace
