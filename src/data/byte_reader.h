// Streams of bytes from files and standard input, decompressed on the way, and lines from them.
// Memory is bounded whatever the size of the input. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/files.h"

namespace laplace {

class ByteReader {
 public:
  virtual ~ByteReader() = default;
  // Fills the front of `out` and returns how many bytes; 0 only at the end. Throws
  // Error(kBadInput) naming the file when it cannot be read, is damaged or ends too early.
  virtual size_t read(std::span<char> out) = 0;
};

// Opens a file, decompressing by its ending: `.gz` (several members too), `.zst` (several frames
// too). "-" is standard input, as it comes. `on_bytes` is called with the count of bytes read from
// the disk, for progress.
std::unique_ptr<ByteReader> open_bytes(const std::string& path,
                                       const std::function<void(int64_t)>& on_bytes);

// What a reader gives, without the byte order mark of UTF-8 in front, which editors put there and
// which is no text. Refuses UTF-16, and, with `text_only`, zero bytes near the beginning: `path` is
// compressed in a way its name does not tell, or holds no text at all.
std::unique_ptr<ByteReader> without_mark(std::unique_ptr<ByteReader> bytes, const std::string& path,
                                         bool text_only);

// `path` without ".gz" or ".zst".
std::string_view without_compression(std::string_view path);

// Lines of a stream.
class LineReader {
 public:
  // Takes `bytes` over. Lines longer than `limit` come in parts of that size.
  LineReader(std::unique_ptr<ByteReader> bytes, size_t limit);

  struct Line {
    std::string text;     // without its "\n"
    bool starts = true;   // the first part of its line
    bool ends = true;     // the last part of its line
    bool newline = true;  // a "\n" followed; false for parts and for an unfinished last line
    int64_t number = 0;   // from 1
  };
  // False at the end of the stream.
  bool next(Line& line);

 private:
  std::unique_ptr<ByteReader> bytes_;
  size_t limit_;
  std::string buffer_;
  std::string_view rest_;  // of buffer_
  bool inside_ = false;    // the last part did not end its line
  int64_t number_ = 0;
};

}  // namespace laplace
