// See byte_reader.h.
//
// Sources: zlib.h and RFC 1952 (members follow one another); zstd.h and RFC 8878 (so do frames).
#include "data/byte_reader.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/process.h"

namespace laplace {

namespace {

constexpr size_t kChunk = size_t{1} << 18;

// Bytes as they lie on the disk.
class FileReader : public ByteReader {
 public:
  FileReader(const std::string& path, std::function<void(int64_t)> on_bytes)
      : name_(path == "-" ? "standard input" : path), on_bytes_(std::move(on_bytes)) {
    if (path == "-") return;
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) {
      fail_input("cannot open ", path, ": ", std::strerror(errno), "; check the path");
    }
  }
  ~FileReader() override {
    if (descriptor_ != STDIN_FILENO) ::close(descriptor_);
  }
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  size_t read(std::span<char> out) override {
    while (true) {
      const ssize_t got = ::read(descriptor_, out.data(), out.size());
      if (got >= 0) {
        if (on_bytes_) on_bytes_(got);
        return static_cast<size_t>(got);
      }
      if (errno == EINTR && stop_requested()) fail("stopped; nothing was written");
      if (errno != EINTR) {
        fail_input("cannot read ", name_, ": ", std::strerror(errno), "; check the file");
      }
    }
  }

 private:
  std::string name_;
  std::function<void(int64_t)> on_bytes_;
  int descriptor_ = STDIN_FILENO;
};

// What both decompressors share: the compressed bytes at hand.
class Decompressor : public ByteReader {
 protected:
  Decompressor(std::string path, const std::function<void(int64_t)>& on_bytes)
      : path_(std::move(path)), file_(path_, on_bytes), input_(kChunk) {}

  // Reads more; false at the end of the file.
  bool refill() {
    have_ = std::span(input_).first(file_.read(input_));
    return !have_.empty();
  }
  [[noreturn]] void fail_truncated() const {
    fail_input(path_, " ends in the middle of its compressed data; fetch the file again");
  }
  [[noreturn]] void fail_damaged(const char* why) const {
    fail_input(path_, " cannot be decompressed: ", why,
               "; fetch the file again, or correct the ending of its name");
  }

  std::string path_;
  FileReader file_;
  std::vector<char> input_;
  std::span<char> have_;  // of input_, not decompressed yet
};

class GzipReader : public Decompressor {
 public:
  GzipReader(const std::string& path, const std::function<void(int64_t)>& on_bytes)
      : Decompressor(path, on_bytes) {
    constexpr int kGzipWrapper = 16;
    if (inflateInit2(&stream_, MAX_WBITS + kGzipWrapper) != Z_OK) fail("zlib cannot start");
  }
  ~GzipReader() override { inflateEnd(&stream_); }
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  size_t read(std::span<char> out) override {
    out = out.first(std::min<size_t>(out.size(), UINT32_MAX));
    while (true) {
      if (have_.empty() && !refill()) {
        if (inside_member_ || !any_member_) fail_truncated();
        return 0;
      }
      if (!inside_member_ && skip_padding()) continue;
      const size_t got = inflate_into(out);
      if (got > 0) return got;
    }
  }

 private:
  // Zeros may follow the last member (tapes, block devices). True when `have_` ran out.
  bool skip_padding() {
    if (!any_member_) return false;
    while (!have_.empty() && have_.front() == '\0') have_ = have_.subspan(1);
    return have_.empty();
  }

  size_t inflate_into(std::span<char> out) {
    inside_member_ = true;
    stream_.next_in = reinterpret_cast<Bytef*>(have_.data());
    stream_.avail_in = static_cast<uInt>(have_.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    const int result = inflate(&stream_, Z_NO_FLUSH);
    have_ = have_.last(stream_.avail_in);
    if (result == Z_STREAM_END) {
      inside_member_ = false;
      any_member_ = true;
      inflateReset(&stream_);
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      fail_damaged(stream_.msg != nullptr ? stream_.msg : "it is not gzip");
    }
    return out.size() - stream_.avail_out;
  }

  z_stream stream_{};
  bool inside_member_ = false;
  bool any_member_ = false;
};

class ZstdReader : public Decompressor {
 public:
  ZstdReader(const std::string& path, const std::function<void(int64_t)>& on_bytes)
      : Decompressor(path, on_bytes), stream_(ZSTD_createDStream(), &ZSTD_freeDStream) {
    if (!stream_) fail("zstd cannot start");
    // Files made with --long=31 need a window of 2 GB, beyond zstd's default limit.
    constexpr int kLargestWindow = 31;
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kLargestWindow);
  }

  size_t read(std::span<char> out) override {
    while (true) {
      // With a full output the decoder may hold more, so it is asked before the file is.
      if (have_.empty() && !holds_output_ && !refill()) {
        if (inside_frame_) fail_truncated();
        return 0;
      }
      ZSTD_inBuffer input{have_.data(), have_.size(), 0};
      ZSTD_outBuffer output{out.data(), out.size(), 0};
      const size_t result = ZSTD_decompressStream(stream_.get(), &output, &input);
      if (ZSTD_isError(result) != 0) fail_damaged(ZSTD_getErrorName(result));
      have_ = have_.subspan(input.pos);
      inside_frame_ = result != 0;
      holds_output_ = inside_frame_ && output.pos == output.size;
      if (output.pos > 0) return output.pos;
    }
  }

 private:
  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream_;
  bool inside_frame_ = true;  // an empty file is a truncated one
  bool holds_output_ = false;
};

// See without_mark.
class MarkReader : public ByteReader {
 public:
  MarkReader(std::unique_ptr<ByteReader> bytes, std::string path, bool text_only)
      : bytes_(std::move(bytes)),
        path_(path == "-" ? "standard input" : std::move(path)),
        text_only_(text_only) {}

  size_t read(std::span<char> out) override {
    if (!begun_) begin();
    if (rest_.empty()) return bytes_->read(out);
    const size_t some = std::min(rest_.size(), out.size());
    std::copy_n(rest_.data(), some, out.data());
    rest_.remove_prefix(some);
    return some;
  }

 private:
  void begin() {
    begun_ = true;
    size_t size = 0;
    while (size < first_.size()) {
      const size_t got = bytes_->read(std::span(first_).subspan(size));
      if (got == 0) break;
      size += got;
    }
    rest_ = std::string_view(first_.data(), size);
    if (rest_.starts_with("\xEF\xBB\xBF")) {
      rest_.remove_prefix(3);
    } else if (rest_.starts_with("\xFF\xFE") || rest_.starts_with("\xFE\xFF")) {
      fail_input(path_, " is UTF-16; convert it to UTF-8, for instance with iconv");
    }
    if (text_only_ && rest_.find('\0') != std::string_view::npos) {
      fail_input(path_, " has zero bytes near its beginning, so it is no text: unpack or convert ",
                 "it, or say --format text to take its bytes as they are");
    }
  }

  std::unique_ptr<ByteReader> bytes_;
  std::string path_;
  bool text_only_;
  bool begun_ = false;
  std::array<char, 8192> first_{};
  std::string_view rest_;  // of first_
};

}  // namespace

std::unique_ptr<ByteReader> without_mark(std::unique_ptr<ByteReader> bytes, const std::string& path,
                                         bool text_only) {
  return std::make_unique<MarkReader>(std::move(bytes), path, text_only);
}

namespace {

// In capitals too, as some systems write them.
bool has_ending(std::string_view path, std::string_view ending) {
  return path.size() >= ending.size() &&
         std::ranges::equal(path.substr(path.size() - ending.size()), ending, {},
                            [](unsigned char c) { return char(std::tolower(c)); });
}

}  // namespace

std::unique_ptr<ByteReader> open_bytes(const std::string& path,
                                       const std::function<void(int64_t)>& on_bytes) {
  if (has_ending(path, ".gz")) return std::make_unique<GzipReader>(path, on_bytes);
  if (has_ending(path, ".zst")) return std::make_unique<ZstdReader>(path, on_bytes);
  return std::make_unique<FileReader>(path, on_bytes);
}

std::string_view without_compression(std::string_view path) {
  for (const std::string_view ending : {".gz", ".zst"}) {
    if (has_ending(path, ending)) return path.substr(0, path.size() - ending.size());
  }
  return path;
}

LineReader::LineReader(std::unique_ptr<ByteReader> bytes, size_t limit)
    : bytes_(std::move(bytes)), limit_(limit), buffer_(kChunk, '\0') {}

bool LineReader::next(Line& line) {
  line.text.clear();
  line.starts = !inside_;
  line.ends = line.newline = false;
  if (!inside_) ++number_;
  line.number = number_;
  while (true) {
    if (rest_.empty()) {
      rest_ = std::string_view(buffer_.data(), bytes_->read(buffer_));
      if (rest_.empty()) {
        line.ends = true;
        return std::exchange(inside_, false) || !line.text.empty();
      }
    }
    const size_t end = rest_.find('\n');
    const size_t take = std::min(std::min(end, rest_.size()), limit_ - line.text.size());
    line.text.append(rest_.substr(0, take));
    rest_.remove_prefix(take);
    if (!rest_.empty() && rest_.front() == '\n') {
      rest_.remove_prefix(1);
      line.ends = line.newline = true;
      inside_ = false;
      return true;
    }
    if (line.text.size() == limit_) {
      inside_ = true;
      return true;
    }
  }
}

}  // namespace laplace
