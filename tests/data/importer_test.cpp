// Importers: every format and compression gives the same documents, long texts come in pieces that
// add up, and what is damaged is refused in a sentence that says where.
#include "data/importer.h"

#include <chrono>
#include <thread>

#include "base/threads.h"
#include "data/byte_reader.h"
#include "import_support.h"

namespace laplace {
namespace {

std::vector<std::string> documents_of(ImportOptions options) {
  Importer importer(std::move(options));
  std::vector<std::string> documents;
  Record record;
  while (importer.next(record)) {
    if (record.starts_document) documents.emplace_back();
    documents.back() += importer.take_text(std::move(record)).value_or("(bad)");
  }
  return documents;
}

ImportOptions from(const std::vector<Path>& inputs) {
  ImportOptions options;
  for (const Path& input : inputs) options.inputs.push_back(input.string());
  return options;
}

const std::string kLines =
    "{\"text\":\"one\\n\"}\r\n\n{\"id\":7,\"text\":\"\xC3\xA9\"}\n{\"text\":\"\"}";

TEST(Importer, ReadsEveryFormatAndCompression) {
  const ScratchDirectory scratch;
  const std::string text = some_text(20000);
  for (const char* name : {"a.txt", "b.md", "c.jsonl"}) {
    const bool json = std::string_view(name).ends_with("jsonl");
    const std::string content = json ? kLines : text;
    const auto expected =
        json ? std::vector<std::string>{"one\n", "\xC3\xA9", ""} : std::vector<std::string>{text};
    const std::string path = (scratch / name).string();
    write_file_atomic(path, content);
    write_file_atomic(path + ".gz", gzip(content));
    write_file_atomic(path + ".zst", zstd(content));
    for (const char* ending : {"", ".gz", ".zst"}) {
      EXPECT_EQ(documents_of(from({path + ending})), expected) << path << ending;
    }
  }
}

TEST(Importer, ReadsSeveralMembersAndFrames) {
  const ScratchDirectory scratch;
  const std::string a = some_text(30000);
  write_file_atomic(scratch / "a.txt.gz", gzip(a) + gzip("") + gzip(a) + std::string(600, '\0'));
  write_file_atomic(scratch / "a.txt.zst", zstd(a) + zstd("") + zstd(a));
  EXPECT_EQ(documents_of(from({scratch / "a.txt.gz"})), std::vector<std::string>{a + a});
  EXPECT_EQ(documents_of(from({scratch / "a.txt.zst"})), std::vector<std::string>{a + a});
}

TEST(Importer, RefusesTruncatedAndDamagedCompression) {
  const ScratchDirectory scratch;
  const std::string text = some_text(30000);
  const auto refuse = [&](const char* name, const std::string& bytes, const std::string& why) {
    write_file_atomic(scratch / name, bytes);
    expect_bad_input([&] { documents_of(from({scratch / name})); }, {name, why, "fetch the file"});
  };
  const std::string gz = gzip(text);
  const std::string zst = zstd(text);
  for (const size_t cut : {size_t{1}, size_t{9}, gz.size() / 2}) {
    refuse("a.txt.gz", gz.substr(0, gz.size() - cut), "in the middle");
  }
  for (const size_t cut : {size_t{1}, zst.size() / 2, zst.size() - 2}) {
    refuse("a.txt.zst", zst.substr(0, zst.size() - cut), "in the middle");
  }
  refuse("a.txt.gz", "", "in the middle");
  refuse("a.txt.zst", "", "in the middle");
  refuse("a.txt.gz", text, "cannot be decompressed");
  refuse("a.txt.zst", text, "cannot be decompressed");
  refuse("a.txt.gz", gz + "garbage", "cannot be decompressed");
  std::string flipped = gz;
  flipped[flipped.size() - 6] ^= 1;  // in the checksum
  refuse("a.txt.gz", flipped, "cannot be decompressed");
}

TEST(Importer, LongTextsComeInPiecesThatAddUp) {
  const ScratchDirectory scratch;
  const Tokenizer tokenizer = small_tokenizer();
  const std::string no_spaces(50000, 'a');
  for (const std::string& text : {some_text(5000), no_spaces, no_spaces + " b\n" + no_spaces}) {
    write_file_atomic(scratch / "a.txt", text);
    for (const size_t piece_bytes : {size_t{10}, size_t{1000}, size_t{1} << 20}) {
      ImportOptions options = from({scratch / "a.txt"});
      options.piece_bytes = piece_bytes;
      Importer importer(options);
      Record record;
      std::vector<TokenId> ids;
      std::string whole;
      while (importer.next(record)) {
        EXPECT_EQ(record.starts_document, whole.empty());
        const auto part = tokenizer.encode(record.bytes);
        ids.insert(ids.end(), part.begin(), part.end());
        whole += record.bytes;
      }
      EXPECT_EQ(whole, text);
      EXPECT_EQ(ids, tokenizer.encode(text));
    }
  }
}

TEST(Importer, CutsAtSeparatorLines) {
  const ScratchDirectory scratch;
  write_file_atomic(scratch / "a.txt",
                    "<|eot|>\none\ntwo\n<|eot|>\r\n<|eot|>\nx <|eot|>\n<|eot|>\nend");
  ImportOptions options = from({scratch / "a.txt"});
  options.document_separator = "<|eot|>";
  const std::vector<std::string> expected = {"one\ntwo\n", "x <|eot|>\n", "end"};
  EXPECT_EQ(documents_of(options), expected);
  options.piece_bytes = 4;
  EXPECT_EQ(documents_of(options), expected);
  write_file_atomic(scratch / "a.txt", std::string("a\n<|eot|>\n") + std::string(100, 'b'));
  EXPECT_EQ(documents_of(options), (std::vector<std::string>{"a\n", std::string(100, 'b')}));
}

TEST(Importer, WalksDirectoriesInOrder) {
  const ScratchDirectory scratch;
  std::filesystem::create_directories(scratch / "d/sub");
  std::filesystem::create_directories(scratch / "d/.git");
  write_file_atomic(scratch / "d/b.txt", "2");
  write_file_atomic(scratch / "d/a.MD", "1");
  write_file_atomic(scratch / "d/sub/c.jsonl", "{\"text\":\"3\"}");
  write_file_atomic(scratch / "d/picture.png", "no");
  write_file_atomic(scratch / "d/.git/x.txt", "no");
  write_file_atomic(scratch / "e.log", "named outright");
  EXPECT_EQ(documents_of(from({scratch / "d", scratch / "e.log"})),
            (std::vector<std::string>{"1", "2", "3", "named outright"}));
  write_file_atomic(scratch / "d/sub/t.parquet", "PAR1");
  expect_bad_input([&] { documents_of(from({scratch / "d"})); }, {"t.parquet", "convert"});
  expect_bad_input([&] { documents_of(from({scratch / "d/sub/t.parquet"})); }, {"parquet"});
  std::filesystem::create_directories(scratch / "empty");
  expect_bad_input([&] { documents_of(from({scratch / "empty"})); }, {"--input"});
  expect_bad_input([&] { documents_of(from({scratch / "none.txt"})); }, {"none.txt", "exist"});
  write_file_atomic(scratch / "one.json", "{}");
  expect_bad_input([&] { documents_of(from({scratch / "one.json"})); }, {"one.json", ".jsonl"});
}

TEST(Importer, FormatCanBeForced) {
  const ScratchDirectory scratch;
  write_file_atomic(scratch / "a.json", "{\"body\":\"x\"}\n");
  ImportOptions options = from({scratch / "a.json"});
  options.format = parse_input_format("jsonl");
  options.column = "body";
  EXPECT_EQ(documents_of(options), std::vector<std::string>{"x"});
  options.format = parse_input_format("text");
  EXPECT_EQ(documents_of(options), std::vector<std::string>{"{\"body\":\"x\"}\n"});
  expect_bad_input([] { parse_input_format("csv"); }, {"--format", "csv", "jsonl"});
}

TEST(Importer, BadLinesAreNamedOrSkipped) {
  const ScratchDirectory scratch;
  const std::pair<std::string, std::string> cases[] = {
      {"{\"text\":", "not valid JSON"},
      {"[1]", "not a JSON object"},
      {"{\"txet\":\"x\"}", "did you mean"},
      {"{\"text\":3}", "not a string"},
      {"{\"text\":\"\xFF\"}", "not valid JSON"},
      {"{\"text\":\"a\"} x", "not valid JSON"},
      {std::string("{\"text\":\"a\"}\0x", 14), "not valid JSON"},
      {"{\"text\":\"" + std::string(2000, 'x') + "\"}", "longer than 1000"}};
  for (const auto& [line, why] : cases) {
    write_file_atomic(scratch / "a.jsonl",
                      "\n{\"text\":\"good\"}\n" + line + "\n{\"text\":\"2\"}\n");
    ImportOptions options = from({scratch / "a.jsonl"});
    options.max_line_bytes = 1000;
    expect_bad_input([&] { documents_of(options); }, {"a.jsonl, line 3", why, "--skip-bad"});
    options.skip_bad = true;
    EXPECT_EQ(documents_of(options), (std::vector<std::string>{"good", "(bad)", "2"}));
  }
}

TEST(Importer, LeavesOutTheMarkOfUtf8) {
  const ScratchDirectory scratch;
  const std::string mark = "\xEF\xBB\xBF";
  for (const std::string& text : {std::string("abc\n"), std::string("\xC3\xA9"), std::string(),
                                  mark, std::string(20000, 'x')}) {
    write_file_atomic(scratch / "a.txt", mark + text);
    const auto documents = documents_of(from({scratch / "a.txt"}));
    EXPECT_EQ(documents, text.empty() ? std::vector<std::string>{} : std::vector{text});
  }
  for (const char* name : {"a.jsonl", "a.ndjson", "a.jsonl.gz"}) {
    const std::string lines = mark + "\r\n" + kLines;
    write_file_atomic(scratch / name, std::string_view(name).ends_with("gz") ? gzip(lines) : lines);
    EXPECT_EQ(documents_of(from({scratch / name})),
              (std::vector<std::string>{"one\n", "\xC3\xA9", ""}));
  }
  // Where it is said to be text, every byte is.
  ImportOptions options = from({scratch / "a.ndjson"});
  options.format = InputFormat::kText;
  EXPECT_EQ(documents_of(options), std::vector<std::string>{mark + "\r\n" + kLines});
}

TEST(Importer, RefusesWhatIsNoText) {
  const ScratchDirectory scratch;
  const std::string zeros("PK\3\4\0\0 anything", 15);
  const std::pair<std::string, std::string> cases[] = {
      {std::string("\xFF\xFE"
                   "a\0b\0",
                   6),
       "UTF-16"},
      {std::string("\xFE\xFF\0a\0b", 6), "UTF-16"},
      {std::string("a\0b\0", 4), "zero bytes"},
      {zeros, "zero bytes"},
      {zstd(some_text(20000)), "zero bytes"},
  };
  for (const auto& [bytes, why] : cases) {
    for (const char* name : {"a.txt", "a.md", "named.bin", "texts.tar"}) {
      write_file_atomic(scratch / name, bytes);
      expect_bad_input([&] { documents_of(from({scratch / name})); }, {name, why});
      ImportOptions as_it_is = from({scratch / name});
      as_it_is.format = InputFormat::kText;
      EXPECT_EQ(documents_of(as_it_is), std::vector<std::string>{bytes});
    }
    write_file_atomic(scratch / "a.txt.gz", gzip(bytes));
    expect_bad_input([&] { documents_of(from({scratch / "a.txt.gz"})); }, {"a.txt.gz", why});
  }
}

TEST(LineReader, GivesLongLinesInParts) {
  const ScratchDirectory scratch;
  write_file_atomic(scratch / "a", "abcdefgh\nij\n\nabcd\nlmnop");
  LineReader reader(open_bytes((scratch / "a").string(), {}), 4);
  LineReader::Line line;
  std::string seen;
  while (reader.next(line)) {
    seen += cat(line.number, line.starts ? "<" : "-", line.text, line.ends ? ">" : "-",
                line.newline ? "n" : ".", " ");
  }
  EXPECT_EQ(seen, "1<abcd-. 1-efgh>n 2<ij>n 3<>n 4<abcd>n 5<lmno-. 5-p>. ");
}

// What is wrong with a file does not depend on which thread finds it first.
TEST(ParallelFor, RethrowsTheErrorOfTheSmallestIndex) {
  for (int round = 0; round < 20; ++round) {
    try {
      parallel_for(64, 4, [](int64_t i) {
        if (i == 10) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        if (i >= 10) fail_input("line ", i);
      });
      FAIL() << "it throws";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "line 10");
    }
  }
}

}  // namespace
}  // namespace laplace
