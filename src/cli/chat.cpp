// chat: a conversation in the terminal. The model's state is the conversation: its size does not
// depend on how long that gets, and saving it or keeping a copy is one copy of the state.
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cli/model_options.h"
#include "cli/verbs.h"
#include "serve/engine/generator.h"
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
  Chat(const OpenModel& model, const GenerationOptions& options, const Path& states)
      : model_(model),
        options_(options),
        states_(states),
        generator_(model.decoder, model.need_tokenizer().vocab_size()) {}

  // One line of input; false: the conversation is over.
  bool line(const std::string& text) {
    if (text.starts_with("//")) {
      reply(text.substr(1));
    } else if (text.starts_with("/")) {
      const size_t space = std::min(text.find(' '), text.size());
      return command(text.substr(0, space), text.substr(std::min(space + 1, text.size())));
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
      fork_ = generator_.snapshot();
      tell("kept a copy; /back returns to it\n");
    } else if (name == "/back") {
      back();
    } else if (name == "/reset") {
      generator_.reset();
      tell("started anew\n");
    } else if (name == "/help") {
      tell(kHelp);
    } else {
      tell(cat("there is no command ", laplace::quoted(name), did_you_mean(name, kCommands),
               " (/help shows them; // begins text with /)\n"));
    }
    return true;
  }

  void back() {
    if (!fork_) {
      tell("there is no copy to return to; /fork makes one\n");
      return;
    }
    generator_.restore(*fork_);
    tell("returned to the copy\n");
  }

  void save(const std::string& name) {
    const Path path = state_path(states_, name);
    save_state(path, generator_.snapshot(), fingerprint());
    tell(cat("saved as ", path.string(), "\n"));
  }

  void load(const std::string& name) {
    generator_.restore(load_state(state_path(states_, name), model_.decoder, fingerprint()));
    tell(cat("loaded a conversation of ", with_commas(generator_.position()), " tokens\n"));
  }

  // Reads all weights, so only when it is needed.
  const std::string& fingerprint() {
    if (fingerprint_.empty()) fingerprint_ = model_fingerprint(model_.directory, model_.config);
    return fingerprint_;
  }

  // Feeds what was said, prints the reply as it comes. Between replies the text that the model has
  // read ends with a line break.
  void reply(const std::string& said) {
    const ReplyInterrupt interrupt;
    const Tokenizer& tokenizer = model_.need_tokenizer();
    std::vector<TokenId> ids = tokenizer.encode(said + "\n");
    if (generator_.position() == 0 && model_.end_of_text >= 0) {
      ids.insert(ids.begin(), model_.end_of_text);
    }
    bool line_printed = true;  // what was printed, and what was read (a stop string is not printed)
    bool line_read = true;
    GenerationSink sink;
    sink.interrupted = ReplyInterrupt::seen;
    sink.text = [&](std::string_view text) {
      print_now(text);
      line_printed = text.ends_with('\n');
    };
    sink.token = [&](TokenId id) { line_read = tokenizer.bytes_of(id).ends_with('\n'); };
    if (generator_.prefill(ids, sink.interrupted)) {
      generate(generator_, tokenizer, model_.end_of_text, options_, sink);
    } else {
      line_read = false;
    }
    if (!line_read) generator_.prefill(tokenizer.encode("\n"));
    if (!line_printed) print_now("\n");
  }

  const OpenModel& model_;
  const GenerationOptions options_;
  const Path states_;
  Generator generator_;
  std::optional<SequenceState> fork_;
  std::string fingerprint_;
};

void run_chat(const ChatOptions& options) {
  GenerationOptions generation = options.sampling.resolve();
  if (generation.stops.empty()) generation.stops = {"\n\n"};
  const OpenModel model = open_model(options.model);
  const Path states =
      options.state_directory.empty() ? default_state_directory() : Path(options.state_directory);
  Chat chat(model, generation, states);
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  if (terminal) tell("/help shows the commands, Ctrl-D ends.\n");
  std::string line;
  while (true) {
    if (terminal) tell("> ");
    if (!std::getline(std::cin, line)) {
      if (terminal) tell("\n");
      break;
    }
    if (line.ends_with('\r')) line.pop_back();
    try {
      if (!chat.line(line)) break;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kBadInput) throw;
      log_error(error.what());  // a wrong name does not end the conversation
    }
  }
}

}  // namespace

void add_chat(CLI::App& program) {
  CLI::App* const app =
      program.add_subcommand("chat", "Talk with a model in the terminal; save, load and fork");
  const auto options = std::make_shared<ChatOptions>();
  add_model_options(*app, options->model);
  app->add_option("--reply-tokens", options->sampling.generation.max_tokens,
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
