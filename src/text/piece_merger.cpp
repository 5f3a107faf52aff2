// See piece_merger.h.
#include "text/piece_merger.h"

#include <algorithm>
#include <array>
#include <functional>

namespace laplace {

namespace {

// Below this length scanning all pairs for every merge is faster than a heap.
constexpr size_t kShort = 64;
constexpr size_t kLongest = size_t{1} << 30;
constexpr uint32_t kNowhere = UINT32_MAX;

}  // namespace

void PieceMerger::merge(const Tokenizer::Tables& tables, std::string_view piece,
                        std::vector<TokenId>& ids) {
  if (piece.size() <= kShort) return merge_short(tables, piece, ids);
  for (; piece.size() > kLongest; piece.remove_prefix(kLongest)) {
    merge_long(tables, piece.substr(0, kLongest), ids);
  }
  merge_long(tables, piece, ids);
}

void PieceMerger::merge_short(const Tokenizer::Tables& tables, std::string_view piece,
                              std::vector<TokenId>& ids) {
  std::array<TokenId, kShort> tokens;
  std::array<Merge, kShort> pairs;  // pairs[i]: of tokens i and i + 1
  size_t n = piece.size();
  for (size_t i = 0; i < n; ++i) tokens[i] = tables.byte_ids[uint8_t(piece[i])];
  for (size_t i = 0; i + 1 < n; ++i) pairs[i] = tables.table.find(tokens[i], tokens[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == Merge::kNone) break;
    tokens[best] = pairs[best].id;
    std::copy(&tokens[best + 2], &tokens[n], &tokens[best + 1]);
    if (best + 2 < n) std::copy(&pairs[best + 1], &pairs[n - 1], &pairs[best]);
    --n;
    if (best > 0) pairs[best - 1] = tables.table.find(tokens[best - 1], tokens[best]);
    if (best + 1 < n) pairs[best] = tables.table.find(tokens[best], tokens[best + 1]);
  }
  ids.insert(ids.end(), tokens.data(), tokens.data() + n);
}

void PieceMerger::put_pair(const Tokenizer::Tables& tables, uint32_t at) {
  Node& node = nodes_[at];
  node.rank =
      node.next == kNowhere ? Merge::kNone : tables.table.find(node.id, nodes_[node.next].id).rank;
  if (node.rank != Merge::kNone) heap_.push_back((uint64_t{uint32_t(node.rank)} << 32) | at);
}

void PieceMerger::merge_long(const Tokenizer::Tables& tables, std::string_view piece,
                             std::vector<TokenId>& ids) {
  const auto n = uint32_t(piece.size());
  nodes_.resize(n);
  heap_.clear();
  for (uint32_t i = 0; i < n; ++i) {
    nodes_[i] = {tables.byte_ids[uint8_t(piece[i])], i + 1 < n ? i + 1 : kNowhere,
                 i > 0 ? i - 1 : kNowhere, Merge::kNone};
  }
  for (uint32_t i = 0; i < n; ++i) put_pair(tables, i);
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  const auto push = [&](uint32_t at) {
    const size_t before = heap_.size();
    put_pair(tables, at);
    if (heap_.size() > before) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  };
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint64_t entry = heap_.back();
    heap_.pop_back();
    const auto rank = int32_t(entry >> 32);
    const auto at = uint32_t(entry);
    Node& node = nodes_[at];
    if (node.rank != rank) continue;  // one of its tokens is in another merge by now
    Node& gone = nodes_[node.next];
    node.id = tables.merges[size_t(rank)].id;
    node.next = gone.next;
    gone.rank = Merge::kNone;
    if (node.next != kNowhere) nodes_[node.next].previous = at;
    push(at);
    if (node.previous != kNowhere) push(node.previous);
  }
  for (uint32_t at = 0; at != kNowhere; at = nodes_[at].next) ids.push_back(nodes_[at].id);
  if (nodes_.size() > size_t{1} << 20) {  // an unusual piece: give its memory back
    nodes_ = {};
    heap_ = {};
  }
}

}  // namespace laplace
