// Reading and writing safetensors: the round trip, and every way in which a file may be wrong.
#include "model/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/random.h"
#include "support/golden.h"
#include "support/scratch.h"

namespace laplace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ScratchDirectory;

// A file with this header text and so many bytes of data.
std::string file_bytes(const std::string& header, size_t data) {
  const uint64_t length = header.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + header + std::string(data, '\1');
}

SafetensorsHeader parse(const std::string& bytes) {
  return parse_safetensors_header(std::as_bytes(std::span(bytes)), "model.safetensors");
}

// The sentence with which the bytes are refused, "" if they are not.
std::string refusal(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    return error.what();
  }
  return "";
}

TEST(SafetensorsTest, RoundTripKeepsOrderValuesAndMetadata) {
  const ScratchDirectory dir;
  const at::Tensor whole = at::arange(12, at::kFloat).view({3, 4});
  const std::vector<NamedTensor> tensors = {
      {"z", whole},
      {"strided", whole.t()},
      {"bf16", whole.to(at::kBFloat16)},
      {"flags", at::full({3}, true, at::kBool)},
      {"ids", at::arange(5, at::kLong)},  // misaligned: begins at an odd byte
      {"double", at::arange(2, at::kDouble)},
      {"empty", at::empty({0, 7}, at::kFloat)},
      {"scalar", at::full({}, 2.5, at::kFloat)},
  };
  write_safetensors(dir / "a.safetensors", tensors, {{"format", "pt"}, {"quote", "\"\\\n"}});
  const SafetensorsFile file(dir / "a.safetensors");
  EXPECT_THAT(file.names(),
              ElementsAre("z", "strided", "bf16", "flags", "ids", "double", "empty", "scalar"));
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor back = file.tensor(name);
    EXPECT_EQ(back.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(back.sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(at::equal(back, tensor)) << name;
  }
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("quote"), "\"\\\n");
  EXPECT_FALSE(std::filesystem::exists(dir / "a.safetensors.tmp"));
}

TEST(SafetensorsTest, DataStartsAtAMultipleOfEight) {
  for (size_t length = 1; length < 20; ++length) {
    const std::vector<TensorInfo> one = {{std::string(length, 'n'), TensorDtype::kF32, {1}, 0, 4}};
    EXPECT_EQ(make_safetensors_header(one, {}).size() % 8, 0U);
    EXPECT_EQ(parse(make_safetensors_header(one, {}) + "abcd").tensors[0].name, one[0].name);
  }
}

TEST(SafetensorsTest, ViewsOutliveTheFile) {
  const ScratchDirectory dir;
  write_safetensors(dir / "a.safetensors", std::vector<NamedTensor>{{"a", at::arange(1000)}});
  at::Tensor view;
  {
    const SafetensorsFile file(dir / "a.safetensors");
    view = file.tensor("a");
    EXPECT_EQ(view.const_data_ptr(), file.tensor("a").const_data_ptr()) << "a view, not a copy";
  }
  std::filesystem::remove(dir / "a.safetensors");
  EXPECT_TRUE(at::equal(view, at::arange(1000)));
}

TEST(SafetensorsTest, UnknownNamesSuggestTheNearest) {
  const SafetensorsFile file(testing::golden_path("tiny/model.safetensors"));
  EXPECT_FALSE(file.contains("embed.weigth"));
  try {
    file.tensor("embed.weigth");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean \"embed.weight\"?"));
  }
}

TEST(SafetensorsTest, WriterRefusesWhatTheFormatCannotHold) {
  const ScratchDirectory dir;
  const at::Tensor one = at::zeros({1});
  const auto write = [&](const std::vector<NamedTensor>& tensors) {
    write_safetensors(dir / "a.safetensors", tensors);
  };
  EXPECT_THROW(write({{"a", one}, {"a", one}}), Error);
  EXPECT_THROW(write({{"__metadata__", one}}), Error);
  EXPECT_THROW(write({{"a", at::Tensor()}}), Error);
  EXPECT_THROW(write({{"a", at::zeros({1}, at::kComplexFloat)}}), Error);
  EXPECT_FALSE(std::filesystem::exists(dir / "a.safetensors"));
}

TEST(SafetensorsTest, AcceptsTheSmallestFiles) {
  EXPECT_TRUE(parse(file_bytes("{}", 0)).tensors.empty());
  EXPECT_EQ(parse(file_bytes(R"({"__metadata__":{"a":"b"}}   )", 0)).metadata.at("a"), "b");
}

// Not a test of its own: writes the file that safetensors_python_test.py opens.
TEST(SafetensorsTest, WritesForPython) {
  const char* const path = std::getenv("LAPLACE_TEST_OUTPUT");
  if (path == nullptr) GTEST_SKIP() << "LAPLACE_TEST_OUTPUT is not set";
  const at::Tensor squares = at::arange(12, at::kFloat).square().view({3, 4});
  const std::vector<NamedTensor> tensors = {
      {"squares", squares},
      {"transposed", squares.t()},
      {"ids", at::arange(5, at::kLong)},
      {"flags", at::arange(3).eq(1)},
      {"double", at::arange(2, at::kDouble)},
      {"half", squares.to(at::kHalf)},
      {"empty", at::empty({0, 7}, at::kFloat)},
      {"scalar", at::full({}, 2.5, at::kFloat)},
  };
  write_safetensors(path, tensors, {{"format", "pt"}, {"note", "π \"quoted\""}});
}

struct BadFile {
  const char* what;
  std::string bytes;
  const char* sentence;  // a part of it
};

std::string two(const char* first, const char* second, size_t data) {
  return file_bytes(cat(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)", first,
                        R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)", second, "}}"),
                    data);
}

std::string one(const char* dtype, const char* shape, const char* offsets, size_t data) {
  return file_bytes(cat(R"({"a":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)",
                        offsets, "}}"),
                    data);
}

std::vector<BadFile> bad_files() {
  const std::string good = one("F32", "[2]", "[0,8]", 8);
  std::string huge_length = good;
  huge_length[7] = '\x7f';
  return {
      {"empty", "", "too few"},
      {"seven bytes", "1234567", "too few"},
      {"length beyond the file", good.substr(0, 20), "only 12 follow"},
      {"length near 2^63", huge_length, "only"},
      {"no json", file_bytes("hello", 0), "does not begin with '{'"},
      {"no header", file_bytes("", 0), "does not begin with '{'"},
      {"json cut", file_bytes(R"({"a":)", 0), "not valid JSON"},
      {"text behind", file_bytes("{}x", 0), "not valid JSON"},
      {"text behind a zero", file_bytes(std::string("{}\0x", 4), 0), "zero byte"},
      {"invalid UTF-8", file_bytes("{\"\xff\":{}}", 0), "not valid JSON"},
      {"data cut", good.substr(0, good.size() - 1), "cut short"},
      {"bytes behind", good + "x", "holds 9 bytes of data"},
      {"overlap", two("[0,8]", "[4,12]", 12), "an overlap"},
      {"same range", two("[0,8]", "[0,8]", 8), "an overlap"},
      {"hole", two("[0,8]", "[12,20]", 20), "a hole"},
      {"hole in front", one("F32", "[2]", "[4,12]", 12), "a hole"},
      {"range too short", one("F32", "[2]", "[0,4]", 4), "need 8 bytes"},
      {"range backwards", one("F32", "[2]", "[8,0]", 8), "need 8 bytes"},
      {"product overflows", one("F32", "[4294967296,4294967296]", "[0,8]", 8), "too large"},
      {"bytes overflow", one("F64", "[2305843009213693952]", "[0,0]", 0), "too large"},
      {"zero hides overflow", one("F32", "[0,4294967296,4294967296]", "[0,0]", 0), "too large"},
      {"offset above 2^63", one("F32", "[2]", "[0,18446744073709551615]", 8), "above 2^63"},
      {"offset above 2^64", one("F32", "[2]", "[0,18446744073709551624]", 8), "a fraction"},
      {"negative size", one("F32", "[-2]", "[0,8]", 8), "a negative number"},
      {"fraction", one("F32", "[2.0]", "[0,8]", 8), "a fraction"},
      {"unknown dtype", one("Q4_K", "[2]", "[0,8]", 8), "not supported"},
      {"17 dimensions", one("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]", 1), "more than"},
      {"three offsets", one("F32", "[2]", "[0,8,8]", 8), "other than two"},
      {"nested shape", one("F32", "[[2]]", "[0,8]", 8), "an array"},
      {"no offsets", file_bytes(R"({"a":{"dtype":"F32","shape":[2]}})", 8), "must have"},
      {"unknown field", file_bytes(R"({"a":{"type":"F32"}})", 0), "a string"},
      {"field twice", file_bytes(R"({"a":{"dtype":"F32","dtype":"F32"}})", 0), "twice"},
      {"name twice",
       file_bytes(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                  R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                  0),
       "twice"},
      {"deep", file_bytes(R"({"a":{"b":{"c":{}}}})", 0), "an object"},
      {"metadata of numbers", file_bytes(R"({"__metadata__":{"a":1}})", 0), "a number"},
      {"metadata a string", file_bytes(R"({"__metadata__":"a"})", 0), "a string"},
      {"metadata twice", file_bytes(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "twice"},
      {"a list", file_bytes("{\"a\":[", 0), "an array"},
  };
}

TEST(SafetensorsTest, RefusesDamagedFilesInOneSentence) {
  for (const BadFile& bad : bad_files()) {
    SCOPED_TRACE(bad.what);
    const std::string sentence = refusal(bad.bytes);
    EXPECT_THAT(sentence, HasSubstr(bad.sentence));
    EXPECT_THAT(sentence, HasSubstr("model.safetensors"));
  }
}

TEST(SafetensorsTest, ErrorsCarryNoControlCharacters) {
  const std::string sentence =
      refusal(file_bytes(R"({"\u001b[31m":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4));
  EXPECT_THAT(sentence, HasSubstr(R"(\x1b[31m)"));
}

TEST(SafetensorsTest, RefusesAHeaderAbove100MB) {
  const std::string bytes = file_bytes("{" + std::string(kMaxSafetensorsHeader, ' ') + "}", 0);
  EXPECT_THAT(refusal(bytes), HasSubstr("at most 100 MB"));
}

TEST(SafetensorsTest, ManyTensorsTakeLinearTime) {
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 200'000; ++i) tensors.push_back({cat("t", i), TensorDtype::kU8, {0}, 0, 0});
  EXPECT_EQ(parse(make_safetensors_header(tensors, {})).tensors.size(), tensors.size());
}

// Whatever byte is changed, the file is refused or its tensors lie inside it.
TEST(SafetensorsTest, MutationsNeverReachOutsideTheFile) {
  const std::string good = read_file(testing::golden_path("decay.safetensors"));
  for (uint64_t round = 0; round < 3000; ++round) {
    std::string bytes = good;
    for (uint64_t i = 0; i <= round % 4; ++i) {
      const uint64_t bits = random_bits(7, round, i);
      bytes[(bits >> 8) % (i == 0 ? bytes.size() : 600)] = static_cast<char>(bits);
    }
    try {
      const SafetensorsHeader header = parse(bytes);
      for (const TensorInfo& tensor : header.tensors) {
        ASSERT_LE(header.data_start + tensor.end, bytes.size());
      }
    } catch (const Error&) {
    }
  }
}

TEST(GoldenTest, OpensCasesAndMeasures) {
  const testing::GoldenFile decay("decay.safetensors");
  EXPECT_THAT(decay.cases(), ElementsAre("124m", "3b", "one_head", "two_heads", "wide_range"));
  EXPECT_EQ(decay.description("3b"), "H=16, 1 to 2048");
  EXPECT_EQ(decay.number("two_heads", "half_life_max"), 512);
  EXPECT_FALSE(decay.optional("3b", "missing").has_value());
  const auto all = [](double value) { return at::full({4}, value, at::kDouble); };
  EXPECT_DOUBLE_EQ(testing::max_error(all(2.5), all(2)), 0.25);
  EXPECT_DOUBLE_EQ(testing::rms_error(all(1.5), all(2)), 0.25);
  EXPECT_EQ(testing::max_error(all(1e-13), all(0)), 0);
  EXPECT_GT(testing::max_error(all(1e-11), all(0)), 1e30);
  EXPECT_GT(testing::max_error(all(INFINITY), all(2)), 1e30);
  EXPECT_GT(testing::max_error(all(2), all(2).view({2, 2})), 1e30);
}

}  // namespace
}  // namespace laplace
