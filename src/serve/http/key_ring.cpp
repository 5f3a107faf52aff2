// See key_ring.h.
#include "serve/http/key_ring.h"

#include <sodium.h>

#include <algorithm>

#include "base/error.h"

namespace laplace {

namespace {

constexpr size_t kMinKeyLength = 16;
constexpr size_t kMaxCredentials = 4096;

bool begins_with(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() &&
         std::ranges::equal(text.substr(0, prefix.size()), prefix, [](char a, char b) {
           return (a >= 'A' && a <= 'Z' ? char(a - 'A' + 'a') : a) == b;
         });
}

// The key of an Authorization header, "" when it has none.
std::string key_of(std::string_view authorization) {
  if (authorization.size() > kMaxCredentials) return {};
  if (begins_with(authorization, "bearer ")) return std::string(authorization.substr(7));
  if (!begins_with(authorization, "basic ")) return {};
  const std::string_view coded = authorization.substr(6);
  std::string plain(coded.size(), '\0');
  size_t size = 0;
  if (sodium_base642bin(reinterpret_cast<unsigned char*>(plain.data()), plain.size(), coded.data(),
                        coded.size(), nullptr, &size, nullptr,
                        sodium_base64_VARIANT_ORIGINAL) != 0) {
    return {};
  }
  plain.resize(size);
  const size_t colon = plain.find(':');
  return colon == std::string::npos ? std::string() : plain.substr(colon + 1);
}

std::string tenant_name(std::string_view key) {
  // Not the secret of this process: replicas must agree.
  constexpr std::string_view kPurpose = "laplace tenant name";
  std::array<unsigned char, 16> hash{};
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(key.data()),
                     key.size(), reinterpret_cast<const unsigned char*>(kPurpose.data()),
                     kPurpose.size());
  std::array<char, 33> hex{};
  sodium_bin2hex(hex.data(), hex.size(), hash.data(), hash.size());
  return hex.data();
}

}  // namespace

KeyRing::KeyRing() {
  if (sodium_init() < 0) fail("libsodium does not start");
  randombytes_buf(secret_.data(), secret_.size());
}

KeyRing::Hash KeyRing::hash(std::string_view key) const {
  Hash out{};
  crypto_generichash(out.data(), out.size(), reinterpret_cast<const unsigned char*>(key.data()),
                     key.size(), secret_.data(), secret_.size());
  return out;
}

void KeyRing::add(std::string_view key, const std::string& source) {
  const bool harmless = std::ranges::all_of(key, [](char c) { return c > ' ' && c <= '~'; });
  if (key.size() < kMinKeyLength || !harmless) {
    fail_input(source, ": an API key must have at least ", kMinKeyLength,
               " printable characters and no spaces; `openssl rand -hex 24` makes one");
  }
  entries_.push_back({hash(key), tenant_name(key)});
}

void KeyRing::add_file(const Path& path) {
  std::string text = read_file(path, 1 << 20);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  size_t line_number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line(text.data() + at, end - at);
    at = end + 1;
    ++line_number;
    while (line.ends_with('\r') || line.ends_with(' ') || line.ends_with('\t'))
      line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    add(line, cat(path.string(), " line ", line_number));
  }
  if (empty()) fail_input(path.string(), " has no API key; write one a line");
}

std::optional<std::string> KeyRing::tenant(std::string_view authorization) const {
  if (empty()) return "public";
  const Hash offered = hash(key_of(authorization));
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {  // all of them, wherever it is found
    if (sodium_memcmp(entry.hash.data(), offered.data(), offered.size()) == 0) found = &entry;
  }
  if (found == nullptr) return std::nullopt;
  return found->tenant;
}

}  // namespace laplace
