// data prepare: texts to token shards. data info: what a data directory holds.
#include <algorithm>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "base/threads.h"
#include "cli/checks.h"
#include "cli/input_options.h"
#include "cli/model_options.h"
#include "cli/verbs.h"
#include "data/prepare.h"
#include "text/tokenizer.h"

namespace laplace::cli {

namespace {

constexpr int64_t kSampleTokens = 64;
constexpr size_t kSampleBytes = 300;

// One split as `data info` tells it.
struct SplitReport {
  std::string name;
  SplitInfo info;
  std::string sample;  // "" without a tokenizer
};

struct DataReport {
  std::string directory;
  std::optional<DatasetInfo> dataset;
  std::vector<SplitReport> splits;
};

double bytes_per_token(const SplitInfo& info) {
  const int64_t text_tokens = info.tokens - info.documents;
  return text_tokens > 0 ? double(info.text_bytes) / double(text_tokens) : 0;
}

// Documents of a split that has no dataset.json: its end-of-text tokens.
int64_t count_documents(const TokenStream& stream) {
  std::vector<int32_t> ids(size_t{1} << 16);
  int64_t documents = 0;
  for (int64_t at = 0; at < stream.tokens(); at += static_cast<int64_t>(ids.size())) {
    ids.resize(std::min(ids.size(), static_cast<size_t>(stream.tokens() - at)));
    stream.read(at, ids);
    documents += std::ranges::count(ids, stream.end_of_text());
  }
  return documents;
}

// The beginning of a split's first document, cut between characters.
std::string sample_of(const TokenStream& stream, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids(static_cast<size_t>(std::min(stream.tokens(), kSampleTokens)));
  stream.read(0, ids);
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (size_t i = 0; i < ids.size() && text.size() < kSampleBytes; ++i) {
    if (i > 0 && ids[i] == stream.end_of_text()) break;
    text += decoder.push(ids[i]);
  }
  return text;
}

DataReport inspect_data(const Path& directory) {
  DataReport report{directory.string(), load_dataset_info(directory), {}};
  const int64_t vocab_size =
      report.dataset ? report.dataset->vocab_size : std::numeric_limits<int32_t>::max();
  std::optional<Tokenizer> tokenizer;
  for (const std::string_view name : {kTrainSplit, kValSplit}) {
    if (name == kValSplit && !has_split(directory, name)) continue;
    const TokenStream stream(directory, name, vocab_size);
    if (name == kTrainSplit) tokenizer = stream.tokenizer();
    if (name == kTrainSplit && !tokenizer) {
      log_warning(directory.string(), " has no tokenizer.json, so no text can be shown");
    }
    SplitReport split{std::string(name), {}, tokenizer ? sample_of(stream, *tokenizer) : ""};
    if (report.dataset) {
      split.info = report.dataset->split(name);
    } else {
      split.info = {count_documents(stream), stream.tokens(), 0, 0};
    }
    split.info.shards = stream.shards();
    report.splits.push_back(std::move(split));
  }
  return report;
}

Json to_json(const DataReport& report) {
  Json splits = Json::object();
  for (const SplitReport& split : report.splits) {
    splits[split.name] = {{"documents", split.info.documents},
                          {"tokens", split.info.tokens},
                          {"shards", split.info.shards},
                          {"text_bytes", split.info.text_bytes},
                          {"bytes_per_token", bytes_per_token(split.info)},
                          {"sample", split.sample}};
  }
  Json object = {{"directory", report.directory}};
  if (report.dataset) {
    object["vocab_size"] = report.dataset->vocab_size;
    object["end_of_text"] = report.dataset->end_of_text;
    object["tokenizer_fingerprint"] = report.dataset->tokenizer_fingerprint;
  }
  object["splits"] = std::move(splits);
  return object;
}

void print(const DataReport& report, bool json) {
  if (json) {
    std::cout << to_text(to_json(report));
    return;
  }
  std::cout << strf("%-6s %14s %18s %7s %12s %12s\n", "split", "documents", "tokens", "shards",
                    "text", "bytes/token");
  for (const SplitReport& split : report.splits) {
    const bool known = split.info.text_bytes > 0;
    std::cout << strf("%-6s %14s %18s %7s %12s %12s\n", split.name.c_str(),
                      with_commas(split.info.documents).c_str(),
                      with_commas(split.info.tokens).c_str(),
                      with_commas(split.info.shards).c_str(),
                      known ? human_bytes(double(split.info.text_bytes)).c_str() : "unknown",
                      known ? strf("%.3f", bytes_per_token(split.info)).c_str() : "unknown");
  }
  if (report.dataset) {
    std::cout << "tokenizer of " << with_commas(report.dataset->vocab_size)
              << " tokens, fingerprint " << report.dataset->tokenizer_fingerprint
              << ", end of text " << report.dataset->end_of_text << "\n";
  }
  for (const SplitReport& split : report.splits) {
    if (!split.sample.empty()) {
      std::cout << "\n" << split.name << " begins:\n" << split.sample << "\n";
    }
  }
}

void run_prepare(const PrepareOptions& options, bool json) {
  install_stop_signals();
  const Stopwatch watch;
  const PrepareReport report = prepare_dataset(options);
  if (report.bad_lines > 0) log_warning("left out ", report.bad_lines, " bad lines");
  if (report.empty_documents > 0) {
    log_info("left out ", report.empty_documents, " empty document",
             report.empty_documents == 1 ? "" : "s");
  }
  const int64_t bytes = report.info.train.text_bytes + report.info.val.text_bytes;
  log_info("wrote ", options.out.string(), " from ", report.files,
           report.files == 1 ? " file, " : " files, ", human_bytes(double(bytes)), " of text in ",
           human_duration(watch.seconds()));
  print(inspect_data(options.out), json);
}

struct PrepareArguments {
  PrepareOptions options;
  InputOptions inputs;
  bool json = false;
};

void add_split_options(CLI::App& app, SplitOptions& split) {
  CLI::Option* const fraction =
      app.add_option("--val-fraction", split.val_fraction,
                     "Share of the documents to hold out for validation; of a single document, "
                     "the last share of its text")
          ->capture_default_str();
  app.add_option("--val-last-bytes", split.val_last_bytes,
                 "Hold out the last bytes of the whole text instead, from the start of a line on")
      ->check(above_zero())
      ->excludes(fraction);
  app.add_option("--seed", split.seed, "Which documents are held out")
      ->check(whole_64_bits())
      ->capture_default_str();
  app.add_option("--shard-tokens", split.shard_tokens, "Tokens a shard")->capture_default_str();
}

void add_prepare(CLI::App& data) {
  CLI::App* const app = data.add_subcommand("prepare", "Tokenize texts into shards for training");
  const auto arguments = std::make_shared<PrepareArguments>();
  PrepareOptions& options = arguments->options;
  app->add_option("--tokenizer", options.tokenizer,
                  "Directory with tokenizer.json, or with GPT-2's vocab.bpe and encoder.json")
      ->required();
  add_input_options(*app, arguments->inputs);
  app->add_option("--out", options.out, "The data directory to make")->required();
  add_split_options(*app, options.split);
  app->add_option("--threads", options.threads, "Threads, 0 for all cores; the result is the same")
      ->check(CLI::Range(0, kMostThreads))
      ->capture_default_str();
  app->add_flag("--overwrite", options.overwrite,
                "Replace the data set in --out once the new one is complete");
  app->add_flag("--json", arguments->json, "Print the result as JSON");
  app->footer(
      "Example:\n  laplace data prepare --tokenizer tok --input corpus/ more.jsonl.zst --out data");
  app->callback([arguments] {
    arguments->options.import = arguments->inputs.resolve();
    arguments->options.tokenizer = tokenizer_place(arguments->options.tokenizer);
    run_prepare(arguments->options, arguments->json);
  });
}

void add_info(CLI::App& data) {
  struct Arguments {
    std::string directory;
    bool json = false;
  };
  CLI::App* const app =
      data.add_subcommand("info", "Count documents, tokens and shards, and show how each begins");
  const auto arguments = std::make_shared<Arguments>();
  app->add_option("directory", arguments->directory, "A directory that `data prepare` made")
      ->required()
      ->type_name("DIR");
  app->add_flag("--json", arguments->json, "Print the result as JSON");
  app->footer("Example:\n  laplace data info data");
  app->callback([arguments] { print(inspect_data(arguments->directory), arguments->json); });
}

}  // namespace

void add_data(CLI::App& program) {
  CLI::App* const data = program.add_subcommand("data", "Prepare texts for training");
  data->require_subcommand(1);
  data->footer("Example:\n  laplace data prepare --tokenizer tok --input corpus/ --out data");
  add_prepare(*data);
  add_info(*data);
}

}  // namespace laplace::cli
