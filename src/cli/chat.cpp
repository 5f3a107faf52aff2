// chat: a conversation in the terminal. The model's state is the conversation: its size does not
// depend on how long that gets, and saving it or keeping a copy is one copy of the state.
#include <algorithm>
#include <csignal>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cli/input_lines.h"
#include "cli/model_options.h"
#include "cli/run_request.h"
#include "cli/verbs.h"
#include "serve/engine/model_fingerprint.h"
#include "serve/engine/state_file.h"

namespace laplace::cli {

namespace {

constexpr const char* kHelp =
    "What you type is added to the text with a line break, and the model goes on from there.\n"
    "  /save NAME  keep the conversation in a file, under a name\n"
    "  /load NAME  go on with a conversation that was saved\n"
    "  /fork       keep a copy of the conversation as it is now, in memory\n"
    "  /back       return to that copy, as often as you like, to try another way on\n"
    "  /reset      forget everything and start anew (the copy stays)\n"
    "  /help       show this\n"
    "  /quit       end (so does Ctrl-D)\n"
    "A line that starts with // is text that starts with /. Ctrl-C ends a reply early.\n";

const std::vector<std::string> kCommands = {"/save",  "/load", "/fork", "/back",
                                            "/reset", "/help", "/quit"};

struct ChatOptions {
  ModelOptions model;
  SamplingOptions sampling;
  std::string state_directory;
};

volatile std::sig_atomic_t interrupt_seen = 0;

// While it lives, the first SIGINT only sets interrupt_seen, a second one ends the program. Outside
// replies the signal ends the program as usual.
class ReplyInterrupt {
 public:
  ReplyInterrupt() {
    interrupt_seen = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { interrupt_seen = 1; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGINT, &action, &before_);
  }
  ~ReplyInterrupt() { ::sigaction(SIGINT, &before_, nullptr); }
  ReplyInterrupt(const ReplyInterrupt&) = delete;
  ReplyInterrupt& operator=(const ReplyInterrupt&) = delete;

  static bool seen() { return interrupt_seen != 0; }

 private:
  struct sigaction before_ {};
};

// Messages are for people: standard error. Replies are results: standard output.
void tell(std::string_view text) { std::cerr << text << std::flush; }

class Chat {
 public:
  Chat(const OpenModel& model, Engine& engine, const Request& options, bool seeded,
       const Path& states)
      : model_(model),
        engine_(engine),
        options_(options),
        seeded_(seeded),
        states_(states),
        // Now: later the files may be another model's, or gone.
        fingerprint_(model_fingerprint(model.directory, model.config)) {
    (void)model.need_tokenizer();
  }
  static bool is_command(std::string_view text) {
    return text.starts_with("/") && !text.starts_with("//");
  }

  // One line of input; false: the conversation is over.
  bool line(const std::string& text) {
    if (text.starts_with("//")) {
      reply(text.substr(1));
    } else if (is_command(text)) {
      std::istringstream words(text);
      std::string name, argument, more;
      words >> name >> argument >> more;
      const bool takes_name = name == "/save" || name == "/load";
      if (!more.empty() || (!argument.empty() && !takes_name)) {
        fail_input(name,
                   takes_name ? " takes one name, without spaces" : " takes nothing behind it",
                   "; /help shows the commands");
      }
      return command(name, argument);
    } else {
      reply(text);
    }
    return true;
  }

 private:
  bool command(const std::string& name, const std::string& argument) {
    if (name == "/quit") return false;
    if (name == "/save") {
      save(argument);
    } else if (name == "/load") {
      load(argument);
    } else if (name == "/fork") {
      fork_ = state_;
      has_fork_ = true;
      tell("kept a copy; /back returns to it\n");
    } else if (name == "/back") {
      back();
    } else if (name == "/reset") {
      state_.reset();
      tell("started anew\n");
    } else if (name == "/help") {
      tell(kHelp);
    } else {
      fail_input("there is no command ", laplace::quoted(name), did_you_mean(name, kCommands),
                 " (/help shows them; // begins text with /)");
    }
    return true;
  }

  void back() {
    if (!has_fork_) fail_input("there is no copy to return to; /fork makes one");
    state_ = fork_;
    tell("returned to the copy\n");
  }

  void save(const std::string& name) {
    const Path path = state_path(states_, name);
    if (!state_) fail_input("there is nothing to save yet; say something first");
    save_state(path, model_.config, *state_, fingerprint_);
    tell(cat("saved as ", path.string(), "\n"));
  }

  void load(const std::string& name) {
    state_ = load_state(state_path(states_, name), model_.config, fingerprint_);
    tell(cat("loaded a conversation of ", with_commas(state_->position), " tokens\n"));
  }

  // Feeds `ids` and generates at most `max_tokens`; the state is then what comes after. False when
  // it was interrupted before all of `ids` was read: the state stays what it was.
  bool go_on(std::vector<TokenId> ids, int64_t max_tokens, const RunEvents& events,
             std::string* rest) {
    Request request = options_;
    request.prompt = std::move(ids);
    request.from = state_;
    // Without a --seed each reply has luck of its own, the one after /back too.
    if (!seeded_) request.sampling.seed = new_seed();
    request.max_tokens = max_tokens;
    request.min_tokens = std::min(request.min_tokens, max_tokens);
    request.snapshot_at_end = true;
    const RunResult result = run_request(engine_, std::move(request), events);
    *rest = result.finish.text;
    if (!result.state) return false;
    state_ = result.state;
    return true;
  }

  // Feeds what was said, prints the reply as it comes. Between replies the text that the model has
  // read ends with a line break.
  void reply(const std::string& said) {
    const ReplyInterrupt interrupt;
    const Tokenizer& tokenizer = model_.need_tokenizer();
    std::vector<TokenId> ids = tokenizer.encode(said + "\n");
    if (!state_ && model_.end_of_text >= 0) ids.insert(ids.begin(), model_.end_of_text);
    bool line_printed = true;  // what was printed, and what was read (a stop string is not printed)
    bool line_read = true;
    const auto print = [&](std::string_view text) {
      if (text.empty()) return;
      print_now(text);
      line_printed = text.ends_with('\n');
    };
    RunEvents events;
    events.interrupted = ReplyInterrupt::seen;
    events.token = [&](const TokenResult& token, std::string_view text) {
      print(text);
      line_read = tokenizer.bytes_of(token.id).ends_with('\n');
    };
    std::string rest;
    if (!go_on(std::move(ids), options_.max_tokens, events, &rest)) {
      tell("interrupted before the line was read; it is forgotten\n");
      return;
    }
    print(rest);
    if (!line_read) go_on(tokenizer.encode("\n"), 0, {}, &rest);
    if (!line_printed) print_now("\n");
  }

  const OpenModel& model_;
  Engine& engine_;
  const Request options_;
  const bool seeded_;  // by the user
  const Path states_;
  const std::string fingerprint_;
  std::shared_ptr<const SequenceSnapshot> state_;  // null: nothing has been said
  std::shared_ptr<const SequenceSnapshot> fork_;
  bool has_fork_ = false;
};

void run_chat(const ChatOptions& options) {
  if (options.sampling.request.max_tokens < 0) {
    fail_input("--reply-tokens is ", options.sampling.request.max_tokens,
               ", but must be 0 or more");
  }
  Request request = options.sampling.resolve();
  if (request.stops.empty()) request.stops = {"\n\n"};
  const OpenModel model = open_model(options.model);
  const auto engine = open_engine(options.model, model);
  const Path states =
      options.state_directory.empty() ? default_state_directory() : Path(options.state_directory);
  Chat chat(model, *engine, request, options.sampling.seed.has_value(), states);
  InputLines lines;
  if (lines.terminal()) tell("/help shows the commands, Ctrl-D ends.\n");
  int64_t failures = 0;
  while (const std::optional<std::string> line = lines.next("> ")) {
    try {
      if (!chat.line(*line)) break;
    } catch (const Error& error) {
      // What a command cannot do does not end the conversation.
      if (error.kind() != ErrorKind::kBadInput && !Chat::is_command(*line)) throw;
      log_error(error.what());
      ++failures;
    }
  }
  if (!lines.terminal() && failures > 0) {
    fail_input(failures, " of the lines could not be carried out; see above");
  }
}

}  // namespace

void add_chat(CLI::App& program) {
  CLI::App* const app =
      program.add_subcommand("chat", "Talk with a model in the terminal; save, load and fork");
  const auto options = std::make_shared<ChatOptions>();
  add_model_options(*app, options->model);
  app->add_option("--reply-tokens", options->sampling.request.max_tokens,
                  "A reply has at most this many tokens")
      ->capture_default_str();
  add_sampling_options(*app, options->sampling);
  app->get_option("--stop")->description(
      "End a reply before this text; may be given several times (an empty line if left out)");
  app->add_option("--state-dir", options->state_directory,
                  "Where /save and /load keep conversations (" +
                      default_state_directory().string() + " if left out)")
      ->type_name("DIR");
  app->footer(
      cat("The template is plain: text as in the training data, no roles.\n\nIn the chat:\n", kHelp,
          "Example:\n  laplace chat --model run --temperature 0.7"));
  app->callback([options] { run_chat(*options); });
}

}  // namespace laplace::cli
