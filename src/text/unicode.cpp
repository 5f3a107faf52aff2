// See unicode.h. Source for the well-formed sequences: The Unicode Standard 16.0, table 3-7.
#include "text/unicode.h"

namespace laplace {

namespace {

// How a sequence goes on after its lead byte: its length, and the range of its second byte (later
// bytes are always 80..BF). Length 0: no sequence starts with this byte.
struct Lead {
  uint8_t length;
  uint8_t low;
  uint8_t high;
};

constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};  // continuation bytes, and leads of overlong forms
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};  // below: overlong
  if (byte == 0xED) return {3, 0x80, 0x9F};  // above: surrogates
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};  // below: overlong
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // above: beyond U+10FFFF
  return {0, 0, 0};
}

}  // namespace

Utf8Char read_utf8(const char* at, const char* end) {
  using Kind = Utf8Char::Kind;
  const auto first = uint8_t(*at);
  const Lead lead = lead_of(first);
  if (lead.length == 1) return {Kind::kValid, 1, first};
  if (lead.length == 0) return {Kind::kInvalid, 1, 0};
  uint32_t code_point = first & (0xFF >> (lead.length + 1));
  for (uint8_t i = 1; i < lead.length; ++i) {
    if (at + i == end) return {Kind::kIncomplete, i, 0};
    const auto byte = uint8_t(at[i]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {Kind::kInvalid, i, 0};
    code_point = (code_point << 6) | (byte & 0x3F);
  }
  return {Kind::kValid, lead.length, code_point};
}

bool is_valid_utf8(std::string_view text) {
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    const Utf8Char c = read_utf8(at, end);
    if (c.kind != Utf8Char::Kind::kValid) return false;
    at += c.length;
  }
  return true;
}

void append_utf8(uint32_t code_point, std::string& out) {
  const auto tail = [&](int shift) { out += char(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) {
    out += char(code_point);
  } else if (code_point < 0x800) {
    out += char(0xC0 | (code_point >> 6));
    tail(0);
  } else if (code_point < 0x10000) {
    out += char(0xE0 | (code_point >> 12));
    tail(6);
    tail(0);
  } else {
    out += char(0xF0 | (code_point >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace laplace
