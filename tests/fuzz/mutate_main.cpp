// Runs a fuzz entry without libFuzzer: sound files, mutated at random from a seed, so that ctest
// can run a short one and people a long one.
//
//   fuzz_NAME RUNS SEED FILE...
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Random = std::mt19937_64;

std::string read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot open %s\n", path);
    std::exit(2);
  }
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Numbers that sit on edges: of signs, of widths, of sums that wrap.
uint64_t edge(Random& random) {
  static const std::vector<uint64_t> edges = {0,
                                              1,
                                              0x7f,
                                              0x80,
                                              0xff,
                                              0x7fff,
                                              0xffff,
                                              0x7fffffff,
                                              0x80000000,
                                              0xffffffff,
                                              0x100000000,
                                              0x7fffffffffffffff,
                                              0x8000000000000000,
                                              0xffffffffffffffff,
                                              0xfffffffffffffff8};
  return edges[random() % edges.size()];
}

void mutate(std::string& bytes, const std::vector<std::string>& files, Random& random) {
  const auto place = [&] { return bytes.empty() ? 0 : size_t(random() % bytes.size()); };
  const size_t at = place(), length = std::min<size_t>(random() % 32, bytes.size() - at);
  switch (random() % 8) {
    case 0:  // another byte
      if (!bytes.empty()) bytes[at] = char(random());
      break;
    case 1:  // a flipped bit
      if (!bytes.empty()) bytes[at] = char(bytes[at] ^ (1 << random() % 8));
      break;
    case 2:
      bytes.erase(at, length);
      break;
    case 3:
      bytes.insert(at, bytes.substr(place(), length));
      break;
    case 4: {  // a number of 1 to 8 bytes
      const uint64_t number = edge(random);
      const size_t width = size_t{1} << random() % 4;
      for (size_t i = 0; i < width && at + i < bytes.size(); ++i) {
        bytes[at + i] = char(number >> (8 * i));
      }
      break;
    }
    case 5:  // a number in digits
      bytes.replace(at, std::min<size_t>(length, 4), std::to_string(edge(random)));
      break;
    case 6:
      bytes.resize(at);
      break;
    default: {  // the head of this, the tail of another
      const std::string& other = files[random() % files.size()];
      bytes = bytes.substr(0, at) + other.substr(other.empty() ? 0 : random() % other.size());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s RUNS SEED FILE...\n", argv[0]);
    return 2;
  }
  const long runs = std::atol(argv[1]);
  Random random(std::strtoull(argv[2], nullptr, 10));
  std::vector<std::string> files;
  for (int i = 3; i < argc; ++i) files.push_back(read_file(argv[i]));
  for (long i = 0; i < runs; ++i) {
    std::string bytes = files[random() % files.size()];
    for (size_t n = random() % 6; n-- > 0;) mutate(bytes, files, random);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%ld inputs\n", runs);
}
