// Runs request_fuzz.cpp without libFuzzer: random and mutated inputs from a seed, so that ctest can
// run a short one and people a long one.
//
//   request_fuzz RUNS [SEED]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "../server/memory_server.h"
#include "base/xxh64.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Random = std::mt19937_64;

// What requests are made of, sound and not.
std::string piece(Random& random) {
  static const std::vector<std::string> pieces = {"{",
                                                  "}",
                                                  "[",
                                                  "]",
                                                  ":",
                                                  ",",
                                                  "\"",
                                                  "\\",
                                                  "null",
                                                  "true",
                                                  "false",
                                                  "0",
                                                  "-1",
                                                  "1.5",
                                                  "1e999",
                                                  "NaN",
                                                  "18446744073709551616",
                                                  "\"x\"",
                                                  "\"\\ud800\"",
                                                  "\"\\u0000\"",
                                                  "\"prompt\"",
                                                  "\"messages\"",
                                                  "\"role\"",
                                                  "\"user\"",
                                                  "\"content\"",
                                                  "\"stream\"",
                                                  "\"n\"",
                                                  "\"session\"",
                                                  "\"a-b_C9\"",
                                                  "\"../x\"",
                                                  "\"stop\"",
                                                  "\"logit_bias\"",
                                                  "\"1\"",
                                                  "257",
                                                  "256",
                                                  " ",
                                                  "\n",
                                                  "\xff",
                                                  "\xe2\x80",
                                                  "\"logprobs\"",
                                                  "\"echo\"",
                                                  R"([{"role":"user","content":"x"}])",
                                                  R"({"prompt":"x","session":"s"})",
                                                  "[[1,2],[3]]"};
  return pieces[random() % pieces.size()];
}

std::string session_bytes(Random& random) {
  laplace::SessionRecord record;
  record.info.name = "name";
  record.info.version = "v";
  record.form = "text";
  record.snapshot = laplace::FakeBackend::state(int64_t(random() % 1000) + 1);
  std::string bytes = laplace::encode_session(record, laplace::fake_shape());
  for (size_t i = random() % 4; i-- > 0;) bytes[random() % bytes.size()] = char(random());
  if (random() % 4 == 0) bytes.resize(random() % bytes.size());
  // As often as not with the checksum of what it has become, so that what lies behind is tried.
  if (random() % 2 == 0 && bytes.size() > sizeof(uint64_t)) {
    const size_t end = bytes.size() - sizeof(uint64_t);
    const uint64_t hash = laplace::xxh64(std::as_bytes(std::span(bytes).first(end)));
    std::memcpy(bytes.data() + end, &hash, sizeof hash);
  }
  return bytes;
}

std::string input(Random& random) {
  std::string bytes = {char(random()), char(random())};
  if (((static_cast<unsigned char>(bytes[0]) >> 1) % 6) == 5 && random() % 4 != 0) {
    return bytes + session_bytes(random);
  }
  if (random() % 8 == 0) {
    for (size_t i = random() % 200; i-- > 0;) bytes += char(random());
  } else {
    for (size_t i = random() % 24; i-- > 0;) bytes += piece(random);
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  const long runs = argc > 1 ? std::atol(argv[1]) : 20'000;
  Random random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  for (long i = 0; i < runs; ++i) {
    const std::string bytes = input(random);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%ld inputs\n", runs);
}
