// eval score: the log-probability of every token of a text, or of lines of ids.
#include <ATen/Parallel.h>

#include <charconv>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "cli/model_options.h"
#include "cli/run_request.h"
#include "cli/verbs.h"
#include "eval/score.h"
#include "model/compute_dtype.h"

namespace laplace::cli {

namespace {

struct ScoreOptions {
  ModelOptions model;
  std::string input = "-";
  std::string form = "chunked";
  bool ids = false;
  bool json = false;
};

// One sequence and its scores. `scores` has as many numbers as there are ids, or one less: then the
// first id had nothing before it.
struct Scored {
  std::vector<TokenId> ids;
  std::vector<double> scores;
  std::optional<int64_t> bytes;  // of a text

  double sum() const { return std::accumulate(scores.begin(), scores.end(), 0.0); }
  std::optional<double> score_of(size_t i) const {
    const size_t unscored = ids.size() - scores.size();
    return i < unscored ? std::nullopt : std::optional(scores[i - unscored]);
  }
};

// The ids of one line, separated by spaces or commas.
std::vector<TokenId> parse_ids(std::string_view line, const std::string& source, int64_t number,
                               int64_t vocab_size) {
  constexpr std::string_view kSeparators = " \t\r,";
  std::vector<TokenId> ids;
  while (true) {
    line.remove_prefix(std::min(line.find_first_not_of(kSeparators), line.size()));
    if (line.empty()) return ids;
    const std::string_view word = line.substr(0, line.find_first_of(kSeparators));
    TokenId id = -1;
    const auto got = std::from_chars(word.data(), word.data() + word.size(), id);
    if (got.ec != std::errc() || got.ptr != word.data() + word.size() || id < 0 ||
        id >= vocab_size) {
      fail_input(source, ", line ", number, ": ", laplace::quoted(word),
                 " is not a token id of this model; ids are whole numbers from 0 to ",
                 vocab_size - 1);
    }
    ids.push_back(id);
    line.remove_prefix(word.size());
  }
}

// Gives the log-probabilities of a sequence's tokens but the first.
using Scorer = std::function<std::vector<double>(std::span<const TokenId> ids)>;

// As in training, chunk by chunk.
Scorer chunked_scorer(const ModelOptions& options, const OpenModel& model) {
  if (options.dtype == "int8" || options.dtype == "int4") {
    fail_input("--dtype ", options.dtype, " is for the engine; add --form recurrent");
  }
  if (options.threads > 0) at::set_num_threads(options.threads);
  const c10::Device device = open_device(options.device);
  const auto decoder = std::make_shared<const Decoder>(Decoder::open(
      model.directory, model.config, parse_compute_dtype(options.dtype, device), device));
  return [decoder](std::span<const TokenId> ids) {
    Progress progress("scoring", int64_t(ids.size()), "tokens");
    return log_probs(*decoder, ids, Form::kChunked, [&](int64_t done) {
      progress.set(done);
      return !stop_requested();
    });
  };
}

// Token by token, by the engine, as in generation.
Scorer recurrent_scorer(const ModelOptions& options, const OpenModel& model) {
  const std::shared_ptr<Engine> engine = open_engine(options, model);
  return [engine](std::span<const TokenId> ids) {
    std::vector<double> out;
    if (ids.size() < 2) return out;
    Progress progress("scoring", int64_t(ids.size()), "tokens");
    Request request;
    request.prompt.assign(ids.begin(), ids.end());
    request.max_tokens = 0;
    request.prompt_log_probs = true;
    RunEvents events;
    events.interrupted = stop_requested;
    bool first = true;
    events.prompt = [&](const TokenResult& token) {
      progress.add(1);
      if (!first) out.push_back(double(token.log_prob));
      first = false;
    };
    run_request(*engine, std::move(request), events);
    return out;
  };
}

std::vector<double> scores_of(const Scorer& scorer, std::span<const TokenId> ids) {
  auto scores = scorer(ids);
  if (stop_requested()) fail("stopped before the scores were complete");
  return scores;
}

// A text is scored as a document: after the end-of-text token, where there is one.
Scored score_text(const OpenModel& model, const Scorer& scorer, std::string_view text) {
  Scored out{model.need_tokenizer().encode(text), {}, int64_t(text.size())};
  std::vector<TokenId> fed = out.ids;
  if (model.end_of_text >= 0) {
    fed.insert(fed.begin(), model.end_of_text);
  } else if (!fed.empty()) {
    log_warning(
        "the tokenizer has no <|endoftext|> to start from, so the first token has no score");
    out.bytes = *out.bytes - int64_t(model.need_tokenizer().bytes_of(fed.front()).size());
  }
  out.scores = scores_of(scorer, fed);
  return out;
}

std::string token_text(const OpenModel& model, TokenId id) {
  const auto& tokenizer = model.tokenizer;
  if (!tokenizer || id >= tokenizer->vocab_size()) return "";
  return std::string(tokenizer->bytes_of(id));
}

void print_json(const OpenModel& model, const Scored& scored) {
  Json tokens = Json::array(), scores = Json::array();
  for (size_t i = 0; i < scored.ids.size(); ++i) {
    if (model.tokenizer) tokens.push_back(token_text(model, scored.ids[i]));
    const auto score = scored.score_of(i);
    scores.push_back(score ? Json(*score) : Json());
  }
  Json object;
  object["tokens"] = model.tokenizer ? std::move(tokens) : Json();
  object["ids"] = scored.ids;
  object["logprobs"] = std::move(scores);
  object["sum"] = scored.sum();
  if (scored.bytes) {
    object["bits_per_byte"] =
        *scored.bytes > 0 ? Json(bits_per_byte(scored.sum(), *scored.bytes)) : Json();
  }
  print_now(to_line(object) + "\n");
}

void print_table(const OpenModel& model, const Scored& scored) {
  std::string out = strf("%10s %8s  token\n", "log-prob", "id");
  for (size_t i = 0; i < scored.ids.size(); ++i) {
    const auto score = scored.score_of(i);
    const std::string text = token_text(model, scored.ids[i]);
    out += strf("%10s %8d  %s\n", score ? strf("%.4f", *score).c_str() : "-", scored.ids[i],
                text.empty() ? "" : laplace::quoted(text).c_str());
  }
  out += strf("%10.4f %8zu  sum and number of scores", scored.sum(), scored.scores.size());
  if (scored.bytes && *scored.bytes > 0) {
    out += strf(", %.4f bits per byte", bits_per_byte(scored.sum(), *scored.bytes));
  }
  print_now(out + "\n");
}

void run_score(const ScoreOptions& options) {
  const Form form = parse_form(options.form);
  const OpenModel model = open_model(options.model);
  const Scorer scorer = form == Form::kChunked ? chunked_scorer(options.model, model)
                                               : recurrent_scorer(options.model, model);
  const std::string input = read_input(options.input);
  install_stop_signals();  // not before: reading from a terminal ends by the first
  const auto print = options.json ? print_json : print_table;
  if (!options.ids) {
    print(model, score_text(model, scorer, input));
    return;
  }
  const std::string source = options.input == "-" ? "standard input" : options.input;
  std::string_view rest = input;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    Scored scored;
    scored.ids = parse_ids(rest.substr(0, end), source, number, model.config.vocab_size);
    scored.scores = scores_of(scorer, scored.ids);
    print(model, scored);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

void add_score(CLI::App& eval) {
  CLI::App* const app = eval.add_subcommand(
      "score",
      "Log-probability (natural) of every token of a text or of lines of ids, and the sum");
  const auto options = std::make_shared<ScoreOptions>();
  add_model_options(*app, options->model);
  app->add_option("input", options->input, "A file, or - for standard input")
      ->capture_default_str()
      ->type_name("FILE");
  app->add_flag(
      "--ids", options->ids,
      "The input is token ids, each line a sequence of its own. The first id of a line is "
      "only fed: nothing comes before it, so its log-probability is null (- in the table)");
  app->add_option("--form", options->form,
                  "chunked (as in training) or recurrent (token by token, as in generation)")
      ->capture_default_str();
  app->add_flag("--json", options->json, "Print one JSON object a sequence");
  app->footer(
      "A text is scored as a document, after the end-of-text token, so every token of it has a\n"
      "log-probability; bits per byte are -sum / ln 2 / bytes.\n"
      "Example:\n  echo 'To be, or not to be' | laplace eval score --model run");
  app->callback([options] { run_score(*options); });
}

}  // namespace

void add_eval(CLI::App& program) {
  CLI::App* const eval = program.add_subcommand("eval", "Measure what a model knows");
  eval->require_subcommand(1);
  eval->footer("Example:\n  echo 'To be, or not to be' | laplace eval score --model run");
  add_score(*eval);
}

}  // namespace laplace::cli
