// API keys: who may use the server, and whose cache and sessions are whose.
//
// Keys are kept as keyed hashes; a key that is offered is hashed and compared with all of them in
// constant time, so that time tells nothing about any key.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace laplace {

class KeyRing {
 public:
  KeyRing();  // no keys: everybody is the one tenant "public"

  // Throws Error(kBadInput) for one of less than 16 characters, or with spaces. `source` names
  // where it came from, for the message; the key itself is never shown.
  void add(std::string_view key, const std::string& source);
  // One key a line; empty lines and lines that begin with '#' are passed over.
  void add_file(const Path& path);

  bool empty() const { return entries_.empty(); }
  // The tenant of an Authorization header ("Bearer KEY", or "Basic" with the key as password, which
  // is what browsers send); nothing when the key is none of ours. A tenant's name is a hash of its
  // key: the same in every process that has the key.
  std::optional<std::string> tenant(std::string_view authorization) const;

 private:
  using Hash = std::array<unsigned char, 32>;
  struct Entry {
    Hash hash;
    std::string tenant;
  };

  Hash hash(std::string_view key) const;

  Hash secret_{};  // of this process
  std::vector<Entry> entries_;
};

}  // namespace laplace
