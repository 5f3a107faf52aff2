// Preparation: the same files whatever the threads, exact counts, both ways of holding out, and
// nothing lost or half-written when it fails.
#include "data/prepare.h"

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <map>

#include "base/json.h"
#include "import_support.h"

namespace laplace {
namespace {

class PrepareTest : public testing::Test {
 protected:
  PrepareTest() : tokenizer_(small_tokenizer()) { tokenizer_.save(scratch_ / "tokenizer"); }

  PrepareOptions options(const std::string& input) const {
    PrepareOptions options;
    options.tokenizer = scratch_ / "tokenizer";
    options.out = scratch_ / "out";
    options.import.inputs = {(scratch_ / input).string()};
    options.split.val_fraction = 0;
    options.threads = 2;
    return options;
  }

  void write_lines(const std::string& name, size_t count) {
    std::string lines;
    for (size_t i = 0; i < count; ++i) {
      texts_.push_back(cat("document ", i, " ab", std::string(i % 9, '\n'), " 12"));
      lines += cat("{\"text\":", to_line(Json(texts_.back())), "}\n");
    }
    write_file_atomic(scratch_ / name, lines);
  }

  std::vector<TokenId> stream(std::string_view split) const {
    const TokenStream stream(scratch_ / "out", split, tokenizer_.vocab_size());
    std::vector<TokenId> ids(static_cast<size_t>(stream.tokens()));
    stream.read(0, ids);
    return ids;
  }

  // The documents of a split, decoded.
  std::vector<std::string> documents(std::string_view split) const {
    std::vector<std::string> documents;
    for (const TokenId id : stream(split)) {
      if (id == tokenizer_.end_of_text()) {
        documents.emplace_back();
      } else {
        documents.back() += tokenizer_.bytes_of(id);
      }
    }
    return documents;
  }

  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(scratch_ / "out")) {
      files[entry.path().filename().string()] = read_file(entry.path());
    }
    return files;
  }

  // `out` is as it was, and nothing of a temporary name is left.
  void expect_untouched(const std::map<std::string, std::string>& before) const {
    if (before.empty()) {
      EXPECT_FALSE(std::filesystem::exists(scratch_ / "out"));
    } else {
      EXPECT_EQ(files(), before);
    }
    EXPECT_FALSE(std::filesystem::exists(scratch_ / ".out.tmp"));
    EXPECT_FALSE(std::filesystem::exists(scratch_ / "out.old"));
  }

  ScratchDirectory scratch_;
  Tokenizer tokenizer_;
  std::vector<std::string> texts_;
};

TEST_F(PrepareTest, RoundTripsDocumentsAndCounts) {
  write_lines("in.jsonl", 500);
  const PrepareReport report = prepare_dataset(options("in.jsonl"));
  EXPECT_EQ(documents("train"), texts_);
  int64_t bytes = 0;
  int64_t tokens = 0;
  for (const std::string& text : texts_) {
    bytes += static_cast<int64_t>(text.size());
    tokens += static_cast<int64_t>(tokenizer_.encode(text).size()) + 1;
  }
  const auto info = load_dataset_info(scratch_ / "out");
  ASSERT_TRUE(info);
  EXPECT_EQ(info->train.documents, 500);
  EXPECT_EQ(info->train.text_bytes, bytes);
  EXPECT_EQ(info->train.tokens, tokens);
  EXPECT_EQ(info->train.shards, 1);
  EXPECT_EQ(info->val.tokens, 0);
  EXPECT_EQ(info->end_of_text, tokenizer_.end_of_text());
  EXPECT_EQ(info->tokenizer_fingerprint, fingerprint_text(tokenizer_.fingerprint()));
  EXPECT_EQ(Tokenizer::open(scratch_ / "out").fingerprint(), tokenizer_.fingerprint());
  EXPECT_EQ(report.info.train.tokens, tokens);
  expect_bad_input([&] { TokenStream(scratch_ / "out", "val", 300); }, {"no val shards"});
}

TEST_F(PrepareTest, FilesDoNotDependOnThreads) {
  write_lines("in.jsonl", 30000);
  write_file_atomic(scratch_ / "in.txt", some_text(60000));
  PrepareOptions how = options("in.jsonl");
  how.import.inputs.push_back((scratch_ / "in.txt").string());
  how.split.val_fraction = 0.1;
  how.split.shard_tokens = 99'991;
  how.overwrite = true;
  std::map<std::string, std::string> first;
  for (const int threads : {1, 2, 5}) {
    how.threads = threads;
    prepare_dataset(how);
    const auto now = files();
    EXPECT_GT(now.size(), 10U);
    if (first.empty()) first = now;
    EXPECT_TRUE(now == first) << threads;
  }
  EXPECT_NEAR(double(documents("val").size()), 3000, 300);
  EXPECT_EQ(documents("val").size() + documents("train").size(), 30001U);
}

TEST_F(PrepareTest, HeldOutDocumentsStayPutWhenMoreAreAdded) {
  write_lines("in.jsonl", 1000);
  PrepareOptions how = options("in.jsonl");
  how.split.val_fraction = 0.05;
  how.split.seed = 11;
  prepare_dataset(how);
  const auto before = documents("val");
  texts_.clear();
  write_lines("in.jsonl", 1200);
  how.overwrite = true;
  prepare_dataset(how);
  auto after = documents("val");
  ASSERT_GT(after.size(), before.size());
  after.resize(before.size());
  EXPECT_EQ(after, before);
  how.split.seed = 12;
  prepare_dataset(how);
  EXPECT_NE(documents("val"), before);
}

TEST_F(PrepareTest, OneTextHoldsOutItsEnd) {
  const std::string text = some_text(3000);
  write_file_atomic(scratch_ / "in.txt", text);
  for (const size_t piece_bytes : {size_t{50}, size_t{3000}, size_t{1} << 20}) {
    for (const bool by_bytes : {false, true}) {
      PrepareOptions how = options("in.txt");
      how.overwrite = true;
      how.import.piece_bytes = piece_bytes;
      how.split.val_fraction = 0.02;
      how.split.val_last_bytes = by_bytes ? 5000 : 0;
      const PrepareReport report = prepare_dataset(how);
      const size_t wanted = by_bytes ? 5000 : size_t(std::ceil(0.02 * double(text.size())));
      const size_t cut = text.rfind('\n', text.size() - wanted - 1) + 1;
      EXPECT_EQ(documents("train"), std::vector<std::string>{text.substr(0, cut)});
      EXPECT_EQ(documents("val"), std::vector<std::string>{text.substr(cut)});
      EXPECT_EQ(report.info.val.text_bytes, int64_t(text.size() - cut));
      EXPECT_EQ(report.info.train.text_bytes, int64_t(cut));
      std::vector<TokenId> expected = tokenizer_.encode(text.substr(0, cut));
      expected.insert(expected.begin(), tokenizer_.end_of_text());
      EXPECT_EQ(stream("train"), expected);
      expected = tokenizer_.encode(text.substr(cut));
      expected.insert(expected.begin(), tokenizer_.end_of_text());
      EXPECT_EQ(stream("val"), expected);
    }
  }
}

TEST_F(PrepareTest, LastBytesMayCrossDocuments) {
  write_lines("in.jsonl", 100);
  PrepareOptions how = options("in.jsonl");
  how.split.val_last_bytes = static_cast<int64_t>(texts_[99].size() + texts_[98].size());
  prepare_dataset(how);
  EXPECT_EQ(documents("val"), std::vector<std::string>(texts_.begin() + 98, texts_.end()));
  how.overwrite = true;
  how.split.val_last_bytes -= 1;  // inside document 98, whose first line starts with it
  prepare_dataset(how);
  EXPECT_EQ(documents("val"), std::vector<std::string>(texts_.begin() + 98, texts_.end()));
  how.split.val_last_bytes = 1 << 20;
  expect_bad_input([&] { prepare_dataset(how); }, {"--val-last-bytes", "no text"});
}

TEST_F(PrepareTest, OneLineIsCutAtAWord) {
  write_file_atomic(scratch_ / "in.txt", "one two three four");
  PrepareOptions how = options("in.txt");
  how.split.val_fraction = 0.3;
  prepare_dataset(how);
  EXPECT_EQ(documents("train"), std::vector<std::string>{"one two"});
  EXPECT_EQ(documents("val"), std::vector<std::string>{" three four"});
  write_file_atomic(scratch_ / "in.txt", "x");
  how.overwrite = true;
  expect_bad_input([&] { prepare_dataset(how); }, {"no text to train on", "--val-fraction"});
}

TEST_F(PrepareTest, FailureLeavesNothing) {
  write_lines("in.jsonl", 20000);
  const std::string lines = read_file(scratch_ / "in.jsonl");
  const std::string whole = gzip(lines);
  write_file_atomic(scratch_ / "cut.jsonl.gz", whole.substr(0, whole.size() / 2));
  write_file_atomic(scratch_ / "bad.jsonl", lines + "{\n");
  write_file_atomic(scratch_ / "empty.txt", "");
  const auto all_fail = [&](bool overwrite, const std::map<std::string, std::string>& before) {
    for (const std::string last : {"cut.jsonl.gz", "bad.jsonl", "empty.txt"}) {
      PrepareOptions how = options("in.jsonl");
      if (last == "empty.txt") how.import.inputs.clear();
      how.import.inputs.push_back((scratch_ / last).string());
      how.split.shard_tokens = 10000;
      how.overwrite = overwrite;
      expect_bad_input([&] { prepare_dataset(how); }, {last == "empty.txt" ? "no text" : last});
      expect_untouched(before);
    }
  };
  all_fail(false, {});
  write_file_atomic(scratch_ / "small.txt", "something small");
  prepare_dataset(options("small.txt"));
  all_fail(true, files());
}

// A limit on the size of files stands for a full disk.
TEST_F(PrepareTest, FailedWritesAreOursAndLeaveNothing) {
  write_file_atomic(scratch_ / "small.txt", "something small");
  prepare_dataset(options("small.txt"));
  const auto before = files();
  write_lines("in.jsonl", 20000);
  PrepareOptions how = options("in.jsonl");
  how.overwrite = true;
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit tight{100'000, limit.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &tight);
  try {
    prepare_dataset(how);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFailure);
    EXPECT_THAT(error.what(), testing::HasSubstr("train_000000.bin"));
  }
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, handler);
  expect_untouched(before);
}

TEST_F(PrepareTest, ErrorsAreTheFirstInTheInput) {
  std::string lines;
  for (int i = 0; i < 200000; ++i) lines += i % 1000 == 77 ? "bad\n" : "{\"text\":\"good good\"}\n";
  write_file_atomic(scratch_ / "in.jsonl", lines);
  for (const int threads : {1, 4}) {
    PrepareOptions how = options("in.jsonl");
    how.threads = threads;
    expect_bad_input([&] { prepare_dataset(how); }, {"in.jsonl, line 78 "});
    how.import.skip_bad = true;
    how.overwrite = true;
    const PrepareReport report = prepare_dataset(how);
    EXPECT_EQ(report.bad_lines, 200);
    EXPECT_EQ(report.info.train.documents, 199800);
    std::filesystem::remove_all(scratch_ / "out");
  }
}

TEST_F(PrepareTest, ReplacesDataSetsOnly) {
  write_file_atomic(scratch_ / "in.txt", "some text");
  PrepareOptions how = options("in.txt");
  std::filesystem::create_directories(how.out);  // empty: fine
  prepare_dataset(how);
  const auto before = files();
  expect_bad_input([&] { prepare_dataset(how); }, {"out", "--overwrite"});
  expect_untouched(before);

  write_file_atomic(scratch_ / "in.txt", "other text");
  how.overwrite = true;
  how.out = (scratch_ / "out").string() + "/";
  prepare_dataset(how);
  EXPECT_EQ(documents("train"), std::vector<std::string>{"other text"});

  write_file_atomic(scratch_ / "out/thesis.doc", "precious");
  expect_bad_input([&] { prepare_dataset(how); }, {"thesis.doc", "no part of a data set"});
  how.out = scratch_ / "in.txt";
  expect_bad_input([&] { prepare_dataset(how); }, {"in.txt is a file"});
}

TEST_F(PrepareTest, RefusesBadOptions) {
  write_file_atomic(scratch_ / "in.txt", "some text");
  const auto refuse = [&](const std::string& option, const auto& change) {
    PrepareOptions how = options("in.txt");
    change(how);
    expect_bad_input([&] { prepare_dataset(how); }, {option});
    expect_untouched({});
  };
  refuse("--val-fraction", [](auto& how) { how.split.val_fraction = 1; });
  refuse("--val-fraction", [](auto& how) { how.split.val_fraction = -0.1; });
  refuse("--val-last-bytes", [](auto& how) { how.split.val_last_bytes = -1; });
  refuse("--shard-tokens", [](auto& how) { how.split.shard_tokens = 0; });
  refuse("--threads", [](auto& how) { how.threads = -1; });
  refuse("none", [](auto& how) { how.tokenizer = "none"; });
  Tokenizer::from_merges({}, {}).save(scratch_ / "plain");
  refuse("<|endoftext|>", [&](auto& how) { how.tokenizer = scratch_ / "plain"; });
}

}  // namespace
}  // namespace laplace
