// See safetensors_header.h. The JSON is read event by event instead of into a tree: memory and time
// stay linear for hostile headers with millions of keys.
#include "model/safetensors_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace laplace {

static_assert(std::endian::native == std::endian::little, "the file's numbers are little-endian");

namespace {

struct DtypeEntry {
  std::string_view name;
  TensorDtype dtype;
  int64_t bytes;
};
// In the order of TensorDtype.
constexpr std::array<DtypeEntry, 15> kDtypes = {{
    {"F64", TensorDtype::kF64, 8},
    {"F32", TensorDtype::kF32, 4},
    {"F16", TensorDtype::kF16, 2},
    {"BF16", TensorDtype::kBF16, 2},
    {"I64", TensorDtype::kI64, 8},
    {"I32", TensorDtype::kI32, 4},
    {"I16", TensorDtype::kI16, 2},
    {"I8", TensorDtype::kI8, 1},
    {"U64", TensorDtype::kU64, 8},
    {"U32", TensorDtype::kU32, 4},
    {"U16", TensorDtype::kU16, 2},
    {"U8", TensorDtype::kU8, 1},
    {"BOOL", TensorDtype::kBool, 1},
    {"F8_E4M3", TensorDtype::kF8E4M3, 1},
    {"F8_E5M2", TensorDtype::kF8E5M2, 1},
}};

constexpr std::string_view kMetadataKey = "__metadata__";

// Receives the parser's events and fills a header. What may come next follows from how deep it is:
//   level 1: the keys are tensor names (or __metadata__); level 2: the fields of one tensor, or the
//   metadata's pairs; level 3: the numbers of "shape" or "data_offsets".
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(SafetensorsHeader* header, const std::string& source)
      : header_(*header), source_(source) {}

  bool start_object(size_t) override {
    if (level_ == 1 && in_metadata_) return level_ = 2, true;
    if (level_ > 1) unexpected("an object");
    if (level_ == 1) {
      seen_ = 0;
      header_.tensors.emplace_back().name = key_;
    }
    return ++level_, true;
  }

  bool key(string_t& key) override {
    if (level_ == 1) {
      if (!names_.insert(key).second) {
        fail_input(source_, " has the tensor ", quoted(key), " twice; write the file again");
      }
      in_metadata_ = key == kMetadataKey;
    }
    key_ = std::move(key);
    return true;
  }

  bool end_object() override {
    if (level_ == 2 && !in_metadata_ && seen_ != kAllFields) {
      fail_input(source_, ": the tensor ", quoted(header_.tensors.back().name),
                 " must have \"dtype\", \"shape\" and \"data_offsets\"; write the file again");
    }
    return --level_, true;
  }

  bool start_array(size_t) override {
    if (level_ != 2 || in_metadata_) unexpected("an array");
    if (key_ == "shape") {
      take_field(kShape);
    } else if (key_ == "data_offsets") {
      take_field(kOffsets);
    } else {
      unexpected("an array");
    }
    numbers_.clear();
    return level_ = 3, true;
  }

  bool end_array() override {
    level_ = 2;
    TensorInfo& tensor = header_.tensors.back();
    if (key_ == "shape") {
      tensor.shape.assign(numbers_.begin(), numbers_.end());
      return true;
    }
    if (numbers_.size() != 2) unexpected("other than two numbers");
    tensor.begin = numbers_[0];
    tensor.end = numbers_[1];
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (level_ != 3) unexpected("a number");
    if (numbers_.size() == kMaxTensorDimensions) unexpected("more than 16 numbers");
    if (value > static_cast<uint64_t>(INT64_MAX)) unexpected("a number above 2^63");
    numbers_.push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (level_ != 2) unexpected("a string");
    if (in_metadata_) {
      if (!header_.metadata.emplace(key_, std::move(value)).second) {
        fail_input(source_, " has the metadata ", quoted(key_), " twice; remove one");
      }
      return true;
    }
    if (key_ != "dtype") unexpected("a string");
    take_field(kDtype);
    const auto* const known = std::find_if(kDtypes.begin(), kDtypes.end(),
                                           [&](const auto& entry) { return entry.name == value; });
    if (known == kDtypes.end()) {
      fail_input(source_, ": the tensor ", quoted(header_.tensors.back().name), " has the dtype ",
                 quoted(value), ", which is not supported; convert it to F32 or BF16");
    }
    header_.tensors.back().dtype = known->dtype;
    return true;
  }

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("true or false"); }
  bool number_integer(int64_t) override { unexpected("a negative number"); }
  bool number_float(double, const string_t&) override { unexpected("a fraction"); }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    fail_input(source_, " has a header that is not valid JSON (", error.what(),
               "); the file is damaged, fetch or write it again");
  }

 private:
  enum Field : unsigned { kDtype = 1, kShape = 2, kOffsets = 4, kAllFields = 7 };

  void take_field(Field field) {
    if ((seen_ & field) != 0) unexpected("the same field twice");
    seen_ |= field;
  }

  [[noreturn]] void unexpected(std::string_view what) const {
    fail_input(source_, ": the header has ", what, " at ", quoted(key_),
               ", where the safetensors format has none; write the file again");
  }

  SafetensorsHeader& header_;
  const std::string& source_;
  std::set<std::string> names_;
  std::string key_;
  std::vector<uint64_t> numbers_;
  int level_ = 0;
  unsigned seen_ = 0;  // fields of the tensor that is open
  bool in_metadata_ = false;
};

// Bytes of a tensor, or -1 where they, or the number of elements, do not fit into 63 bits. Zeros
// count as ones in the overflow check, because strides are products of the other dimensions.
int64_t checked_bytes(const TensorInfo& tensor) {
  auto total = dtype_bytes(tensor.dtype);
  bool empty = false;
  for (const int64_t size : tensor.shape) {
    empty |= size == 0;
    if (__builtin_mul_overflow(total, std::max<int64_t>(size, 1), &total)) return -1;
  }
  return empty ? 0 : total;
}

void check_ranges(SafetensorsHeader& header, uint64_t data_size, const std::string& source) {
  for (const TensorInfo& tensor : header.tensors) {
    const int64_t bytes = checked_bytes(tensor);
    if (bytes < 0) {
      fail_input(source, ": the shape of the tensor ", quoted(tensor.name),
                 " is too large to address; the file is damaged, fetch or write it again");
    }
    if (tensor.begin > tensor.end || tensor.bytes() != static_cast<uint64_t>(bytes)) {
      fail_input(source, ": the tensor ", quoted(tensor.name), " has data_offsets [", tensor.begin,
                 ", ", tensor.end, "], but its shape and dtype need ", bytes,
                 " bytes; the file is damaged, fetch or write it again");
    }
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorInfo& a, const TensorInfo& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  uint64_t expected = 0;
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.begin != expected) {
      fail_input(source, ": the data of the tensor ", quoted(tensor.name), " begins at byte ",
                 tensor.begin, " where ", expected, " was expected, so there is ",
                 tensor.begin < expected ? "an overlap" : "a hole",
                 "; the file is damaged, fetch or write it again");
    }
    expected = tensor.end;
  }
  if (expected != data_size) {
    fail_input(source, " holds ", data_size, " bytes of data, but its header describes ", expected,
               "; the file is ", data_size < expected ? "cut short" : "damaged",
               ", fetch or write it again");
  }
}

}  // namespace

std::string_view dtype_name(TensorDtype dtype) { return kDtypes.at(size_t(dtype)).name; }

int64_t dtype_bytes(TensorDtype dtype) { return kDtypes.at(size_t(dtype)).bytes; }

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::string& source) {
  uint64_t length = 0;
  if (file.size() < sizeof length) {
    fail_input(source, " has ", file.size(),
               " bytes, too few for a safetensors file; check the path");
  }
  std::memcpy(&length, file.data(), sizeof length);
  const uint64_t rest = file.size() - sizeof length;
  if (length > kMaxSafetensorsHeader || length > rest) {
    fail_input(source, " states a header of ", length, " bytes, but ",
               length > rest ? cat("only ", rest, " follow") : "at most 100 MB are allowed",
               "; it is cut short or not a safetensors file");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof length, length);
  if (text.empty() || text.front() != '{') {
    fail_input(source, " has a header that does not begin with '{'; it is not a safetensors file");
  }
  // The parser would take one for the end of the text, whatever follows.
  if (text.find('\0') != std::string_view::npos) {
    fail_input(source, " has a zero byte in its header; fill it up with spaces");
  }
  SafetensorsHeader header;
  HeaderReader reader(&header, source);
  Json::sax_parse(text.begin(), text.end(), &reader);
  header.data_start = sizeof length + length;
  check_ranges(header, rest - length, source);
  return header;
}

std::string make_safetensors_header(std::span<const TensorInfo> tensors, const Metadata& metadata) {
  // Written entry by entry: an ordered tree would search all keys at every insertion.
  std::string text = "{";
  if (!metadata.empty()) {
    text += cat(to_line(Json(kMetadataKey)), ":", to_line(Json(metadata)));
  }
  for (const TensorInfo& tensor : tensors) {
    const Json entry = {{"dtype", dtype_name(tensor.dtype)},
                        {"shape", tensor.shape},
                        {"data_offsets", {tensor.begin, tensor.end}}};
    if (text.size() > 1) text += ",";
    text += cat(to_line(Json(tensor.name)), ":", to_line(entry));
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + text;
}

}  // namespace laplace
