// `laplace tokenizer train|encode|decode`.
#include <unistd.h>
#include <algorithm>
#include <atomic>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/threads.h"
#include "cli/input_options.h"
#include "cli/model_options.h"
#include "cli/verbs.h"
#include "text/bpe_train.h"
#include "text/tokenizer.h"

namespace laplace::cli {

namespace {

// The whole of a file (or pipe), or of standard input for "-".
class Input {
 public:
  explicit Input(const std::string& name) : name_(name == "-" ? "standard input" : name) {
    std::error_code missing;
    if (name == "-") {
      held_ = read_standard_input();
    } else if (std::filesystem::is_regular_file(name, missing) &&
               std::filesystem::file_size(name, missing) > 0) {
      map_ = MappedFile(name);
    } else {  // pipes, and what /proc holds, have no size to be mapped by
      held_ = read_file(name);
    }
  }
  std::string_view text() const {
    if (!held_.empty()) return held_;
    return {reinterpret_cast<const char*>(map_.bytes().data()), map_.size()};
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::string held_;
  MappedFile map_;
};

void print(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size()) {
    fail_errno("cannot write to standard output");
  }
}

void flush() {
  if (std::fflush(stdout) != 0) fail_errno("cannot write to standard output");
}

// Calls body(line, number) for every line of the text, without its newline; numbers from 1.
template <class Body>
void for_lines(std::string_view text, const Body& body) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    body(text.substr(0, end), number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// ---- train

struct TrainFlags {
  InputOptions inputs;
  std::string out;
  int threads = 0;
  BpeOptions options;
};

// Texts enough to keep all threads busy; false behind the last.
bool read_block(Importer& importer, std::vector<Record>& block) {
  constexpr size_t kBlockBytes = size_t{64} << 20;
  block.clear();
  Record record;
  for (size_t bytes = 0; bytes < kBlockBytes && importer.next(record);) {
    bytes += record.bytes.size();
    block.push_back(std::move(record));
  }
  return !block.empty();
}

// Refuses, before the work, where no directory can be made.
void check_place(const Path& directory) {
  if (directory.empty()) fail_input("--out is empty; name a directory");
  Path at = std::filesystem::absolute(directory);
  while (!std::filesystem::exists(at) && at.has_relative_path()) at = at.parent_path();
  if (!std::filesystem::is_directory(at)) {
    fail_input(at.string(), " is a file; name a directory with --out");
  }
  if (::access(at.c_str(), W_OK) != 0) {
    fail_input("cannot write in ", at.string(), ": ", std::strerror(errno),
               "; choose another --out");
  }
}

// A tokenizer without it could not prepare data: it stands between documents.
std::vector<std::string> with_end_of_text(std::vector<std::string> specials) {
  const std::string end = "<|endoftext|>";
  if (std::ranges::find(specials, end) == specials.end()) specials.insert(specials.begin(), end);
  return specials;
}

void train(const TrainFlags& flags) {
  BpeTrainer::check(flags.options);
  check_place(flags.out);
  std::unique_ptr<Progress> progress;
  Importer importer(flags.inputs.resolve(), [&](int64_t bytes) { progress->add(bytes); });
  progress = std::make_unique<Progress>("counting", importer.input_bytes(), "B");
  BpeTrainer trainer(1);  // the records are shared out here, so none is cut once more
  std::atomic<int64_t> bad_lines = 0;
  const int threads = flags.threads > 0 ? flags.threads : available_cores();
  for (std::vector<Record> block; read_block(importer, block);) {
    parallel_for(int64_t(block.size()), threads, [&](int64_t i) {
      const auto text = importer.take_text(std::move(block[size_t(i)]));
      text ? trainer.add(*text) : void(++bad_lines);
    });
  }
  progress->finish();
  if (bad_lines > 0) log_warning("left out ", bad_lines, " bad lines");
  const Tokenizer tokenizer = trainer.train(flags.options);
  tokenizer.save(flags.out);
  log_info("wrote ", (Path(flags.out) / "tokenizer.json").string(), ": ",
           with_commas(tokenizer.vocab_size()), " tokens");
}

void add_train_verb(CLI::App& tokenizer) {
  const auto flags = std::make_shared<TrainFlags>();
  CLI::App* const verb = tokenizer.add_subcommand(
      "train", "Train a byte-level BPE tokenizer and write tokenizer.json");
  add_input_options(*verb, flags->inputs);
  verb->add_option("--vocab-size", flags->options.vocab_size,
                   "Number of tokens: 256 bytes, merges, special tokens")
      ->required();
  verb->add_option("--out", flags->out, "Directory for tokenizer.json")->required();
  verb->add_option("--threads", flags->threads, "Threads; 0: all cores")
      ->check(CLI::Range(0, kMostThreads))
      ->capture_default_str();
  verb->add_option("--min-frequency", flags->options.min_frequency,
                   "Pairs that occur less often do not become tokens")
      ->capture_default_str();
  verb->add_option(
          "--special", flags->options.specials,
          "Special tokens, <|endoftext|> among them whether named or not; they take the last ids")
      ->capture_default_str();
  verb->footer(
      "Example:\n  laplace tokenizer train --input corpus.txt --vocab-size 4096 --out tokenizer");
  verb->callback([flags] {
    flags->options.specials = with_end_of_text(std::move(flags->options.specials));
    train(*flags);
  });
}

// ---- encode and decode

struct CodeFlags {
  std::string tokenizer;
  std::string file = "-";
  bool json = false;
  bool lines = false;
};

void print_ids(const std::vector<TokenId>& ids, bool json) {
  std::string line = json ? "[" : "";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) line += json ? ", " : " ";
    line += std::to_string(ids[i]);
    if (line.size() > size_t{1} << 20) {
      print(line);
      line.clear();
    }
  }
  print(line + (json ? "]\n" : "\n"));
}

void encode(const CodeFlags& flags) {
  const Tokenizer tokenizer = Tokenizer::open(tokenizer_place(flags.tokenizer));
  const Input input(flags.file);
  Encoder encoder(tokenizer);
  std::vector<TokenId> ids;
  const auto one = [&](std::string_view text, int64_t) {
    ids.clear();
    encoder.encode(text, ids);
    print_ids(ids, flags.json);
  };
  if (flags.lines) {
    for_lines(input.text(), one);
  } else {
    one(input.text(), 1);
  }
  flush();
}

// The ids of one line: numbers with white space between them.
std::vector<TokenId> read_ids(std::string_view line, const std::string& where) {
  std::vector<TokenId> ids;
  const char* at = line.data();
  const char* const end = at + line.size();
  while (true) {
    at = std::find_if(at, end, [](char c) { return c != ' ' && c != '\t' && c != '\r'; });
    if (at == end) return ids;
    TokenId id = 0;
    const auto [stop, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (stop != end && *stop != ' ' && *stop != '\t' && *stop != '\r')) {
      const std::string_view rest(at, size_t(end - at));
      fail_input(
          where, ": ", laplace::quoted(rest.substr(0, rest.find_first_of(" \t\r"))),
          " is no token id; give whole numbers with spaces between them, or --json for lists");
    }
    ids.push_back(id);
    at = stop;
  }
}

std::vector<TokenId> read_json_ids(std::string_view line, const std::string& where) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return {};
  const Json list = parse_json(line, where, {uint64_t{4} << 30, 4});
  if (!list.is_array()) fail_input(where, " is not a JSON list; give lists of ids, one a line");
  std::vector<TokenId> ids;
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t{INT32_MAX}) {
      fail_input(where, ": ", laplace::quoted(to_line(id)),
                 " is no token id; give whole numbers from 0 on");
    }
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

void decode(const CodeFlags& flags) {
  const Tokenizer tokenizer = Tokenizer::open(tokenizer_place(flags.tokenizer));
  const Input input(flags.file);
  for_lines(input.text(), [&](std::string_view line, int64_t number) {
    const std::string where = input.name() + ", line " + std::to_string(number);
    const auto ids = flags.json ? read_json_ids(line, where) : read_ids(line, where);
    for (const TokenId id : ids) {
      if (id >= 0 && id < tokenizer.vocab_size()) continue;
      fail_input(where, ": the id ", id, " is outside the vocabulary; ids run from 0 to ",
                 tokenizer.vocab_size() - 1);
    }
    print(tokenizer.decode(ids));
    if (flags.lines) print("\n");
  });
  flush();
}

// What encode and decode have in common.
CLI::App* add_code_verb(CLI::App& tokenizer, const std::string& name, const std::string& help,
                        const std::shared_ptr<CodeFlags>& flags) {
  CLI::App* const verb = tokenizer.add_subcommand(name, help);
  verb->add_option("--tokenizer", flags->tokenizer,
                   "tokenizer.json, its directory, or GPT-2's vocab.bpe and encoder.json")
      ->required();
  verb->add_option("file", flags->file, "File to read, - for standard input")
      ->capture_default_str();
  return verb;
}

void add_encode_verb(CLI::App& tokenizer) {
  const auto flags = std::make_shared<CodeFlags>();
  CLI::App* const verb =
      add_code_verb(tokenizer, "encode", "Text to token ids: a line of ids for each input", flags);
  verb->add_flag("--lines", flags->lines,
                 "Each line is an input, without its newline (else: all is one input)");
  verb->add_flag("--json", flags->json, "Print lists: [1, 2, 3]");
  verb->footer("Example:\n  echo 'Hello, world' | laplace tokenizer encode --tokenizer DIR");
  verb->callback([flags] { encode(*flags); });
}

void add_decode_verb(CLI::App& tokenizer) {
  const auto flags = std::make_shared<CodeFlags>();
  CLI::App* const verb =
      add_code_verb(tokenizer, "decode", "Token ids to text: the bytes, nothing added", flags);
  verb->add_flag("--lines", flags->lines, "Put a newline behind the text of each line of ids");
  verb->add_flag("--json", flags->json, "Read lists, one a line: [1, 2, 3]");
  verb->footer("Example:\n  echo '15496 11 995' | laplace tokenizer decode --tokenizer DIR");
  verb->callback([flags] { decode(*flags); });
}

}  // namespace

void add_tokenizer(CLI::App& program) {
  CLI::App* const tokenizer =
      program.add_subcommand("tokenizer", "Train a tokenizer; text to token ids and back");
  tokenizer->require_subcommand(1);
  tokenizer->footer("Example:\n  laplace tokenizer train --help");
  add_train_verb(*tokenizer);
  add_encode_verb(*tokenizer);
  add_decode_verb(*tokenizer);
}

}  // namespace laplace::cli
