// See prefix_cache.h.
#include "serve/sessions/prefix_cache.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"

namespace laplace {

namespace {

constexpr int64_t kSmallestPower = 256;  // shorter beginnings are read faster than looked up
constexpr int64_t kBoundaries = 2;       // ends of messages that are worth a snapshot

}  // namespace

PrefixCache::PrefixCache(int64_t max_bytes) : max_bytes_(max_bytes) {
  if (sodium_init() < 0) fail("libsodium does not start");
  static_assert(sizeof(Secret) == crypto_shorthash_KEYBYTES);
  randombytes_buf(secret_.data(), secret_.size());
}

uint64_t PrefixCache::start(std::string_view scope) const {
  uint64_t hash = 0;
  crypto_shorthash(reinterpret_cast<unsigned char*>(&hash),
                   reinterpret_cast<const unsigned char*>(scope.data()), scope.size(),
                   secret_.data());
  return hash;
}

uint64_t PrefixCache::extend(uint64_t hash, TokenId id) const {
  std::array<unsigned char, sizeof(hash) + sizeof(id)> block{};
  std::memcpy(block.data(), &hash, sizeof hash);
  std::memcpy(block.data() + sizeof hash, &id, sizeof id);
  crypto_shorthash(reinterpret_cast<unsigned char*>(&hash), block.data(), block.size(),
                   secret_.data());
  return hash;
}

PrefixCache::Entries::iterator PrefixCache::find(uint64_t hash, std::string_view scope,
                                                 std::span<const TokenId> ids) {
  const auto [begin, end] = places_.equal_range(hash);
  for (auto place = begin; place != end; ++place) {
    const Entry& entry = *place->second;
    if (entry.length == int64_t(ids.size()) && entry.scope == scope &&
        std::equal(ids.begin(), ids.end(), entry.ids->begin())) {
      return place->second;
    }
  }
  return entries_.end();
}

PrefixCache::Hit PrefixCache::longest(std::string_view scope, std::span<const TokenId> ids) {
  if (!on()) return {};
  std::vector<int64_t> lengths;
  {
    const std::lock_guard lock(mutex_);
    ++stats_.queries;
    stats_.queried_tokens += int64_t(ids.size());
    for (const auto& [length, count] : lengths_) {
      if (length > int64_t(ids.size())) break;
      lengths.push_back(length);
    }
  }
  // Hashing is the long part and needs no lock.
  std::vector<uint64_t> hashes;
  uint64_t hash = start(scope);
  int64_t at = 0;
  for (const int64_t length : lengths) {
    for (; at < length; ++at) hash = extend(hash, ids[size_t(at)]);
    hashes.push_back(hash);
  }
  const std::lock_guard lock(mutex_);
  for (size_t i = lengths.size(); i-- > 0;) {
    const auto entry = find(hashes[i], scope, ids.first(size_t(lengths[i])));
    if (entry == entries_.end()) continue;
    entries_.splice(entries_.begin(), entries_, entry);
    ++stats_.hits;
    stats_.hit_tokens += entry->length;
    return {entry->snapshot, entry->length};
  }
  return {};
}

void PrefixCache::insert(std::string_view scope, std::shared_ptr<const std::vector<TokenId>> ids,
                         int64_t length, std::shared_ptr<const SequenceSnapshot> snapshot) {
  const int64_t bytes =
      snapshot->bytes() + length * int64_t(sizeof(TokenId)) + int64_t(sizeof(Entry));
  if (bytes > max_bytes_ || length <= 0 || length > int64_t(ids->size())) return;
  uint64_t hash = start(scope);
  for (int64_t i = 0; i < length; ++i) hash = extend(hash, (*ids)[size_t(i)]);
  const std::lock_guard lock(mutex_);
  const auto known = find(hash, scope, std::span(*ids).first(size_t(length)));
  if (known != entries_.end()) return entries_.splice(entries_.begin(), entries_, known);
  while (stats_.bytes + bytes > max_bytes_) {
    erase(std::prev(entries_.end()));
    ++stats_.evicted;
  }
  entries_.push_front(
      {hash, std::string(scope), std::move(ids), length, std::move(snapshot), bytes});
  places_.emplace(hash, entries_.begin());
  ++lengths_[length];
  stats_.bytes += bytes;
  ++stats_.entries;
}

void PrefixCache::erase(Entries::iterator entry) {
  const auto [begin, end] = places_.equal_range(entry->hash);
  places_.erase(std::find_if(begin, end, [&](const auto& place) { return place.second == entry; }));
  if (--lengths_[entry->length] == 0) lengths_.erase(entry->length);
  stats_.bytes -= entry->bytes;
  --stats_.entries;
  entries_.erase(entry);
}

PrefixCacheStats PrefixCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::vector<int64_t> snapshot_places(int64_t length, int64_t cached,
                                     std::span<const int64_t> boundaries, int64_t most) {
  std::vector<int64_t> wanted = {length};  // the dearest first
  const size_t skip = boundaries.size() - std::min<size_t>(boundaries.size(), kBoundaries);
  wanted.insert(wanted.end(), boundaries.rbegin(), boundaries.rend() - std::ptrdiff_t(skip));
  std::vector<int64_t> powers;
  for (int64_t power = kSmallestPower; power < length; power *= 2) powers.push_back(power);
  wanted.insert(wanted.end(), powers.rbegin(), powers.rend());
  std::set<int64_t> places;
  for (const int64_t place : wanted) {
    if (int64_t(places.size()) == most) break;
    if (place > cached && place <= length) places.insert(place);
  }
  return {places.begin(), places.end()};
}

}  // namespace laplace
