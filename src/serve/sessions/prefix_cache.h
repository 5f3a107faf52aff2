// States of prompts that were read before, so that a prompt that begins like one is read from where
// they part. A state stands for all tokens before it, so one snapshot serves any longer prompt.
//
// Scopes keep tenants apart: only a prompt of the same scope (API key and cache_salt) can hit, so
// nobody learns from the time of an answer what somebody else has asked. Places are found by a
// keyed hash (SipHash with a key of this process), and the tokens themselves are compared.
//
// Thread-safe. No LibTorch here.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "serve/engine/snapshot.h"
#include "text/tokenizer.h"

namespace laplace {

struct PrefixCacheStats {
  int64_t queries = 0, hits = 0;               // requests
  int64_t queried_tokens = 0, hit_tokens = 0;  // of prompts
  int64_t entries = 0, bytes = 0, evicted = 0;
};

class PrefixCache {
 public:
  // At most `max_bytes` of snapshots and tokens, the least recently used ones go first; 0 is off.
  explicit PrefixCache(int64_t max_bytes);

  struct Hit {
    std::shared_ptr<const SequenceSnapshot> snapshot;  // null: none
    int64_t tokens = 0;                                // of the prompt that it stands for
  };
  // The longest beginning of `ids` whose state is here.
  Hit longest(std::string_view scope, std::span<const TokenId> ids);

  // The state behind the first `length` of `ids`.
  void insert(std::string_view scope, std::shared_ptr<const std::vector<TokenId>> ids,
              int64_t length, std::shared_ptr<const SequenceSnapshot> snapshot);

  bool on() const { return max_bytes_ > 0; }
  int64_t max_bytes() const { return max_bytes_; }
  PrefixCacheStats stats() const;

 private:
  using Secret = std::array<unsigned char, 16>;
  struct Entry {
    uint64_t hash = 0;
    std::string scope;
    std::shared_ptr<const std::vector<TokenId>> ids;
    int64_t length = 0;
    std::shared_ptr<const SequenceSnapshot> snapshot;
    int64_t bytes = 0;
  };
  using Entries = std::list<Entry>;  // the most recently used first

  uint64_t start(std::string_view scope) const;
  uint64_t extend(uint64_t hash, TokenId id) const;
  // Under the mutex: the entry that stands for exactly these tokens, or end().
  Entries::iterator find(uint64_t hash, std::string_view scope, std::span<const TokenId> ids);
  void erase(Entries::iterator entry);

  const int64_t max_bytes_;
  Secret secret_{};
  mutable std::mutex mutex_;
  Entries entries_;
  std::unordered_multimap<uint64_t, Entries::iterator> places_;
  std::map<int64_t, int64_t> lengths_;  // how many entries of each length
  PrefixCacheStats stats_;
};

// Where to take snapshots of a prompt of `length` tokens of which `cached` are known: at its end,
// at the last of `boundaries` (ends of messages), and at powers of two, so that prompts that share
// a long beginning meet. Ascending, each above `cached`; at most `most`, those nearest the end
// first.
std::vector<int64_t> snapshot_places(int64_t length, int64_t cached,
                                     std::span<const int64_t> boundaries, int64_t most);

}  // namespace laplace
