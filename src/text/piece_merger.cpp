// See piece_merger.h.
#include "text/piece_merger.h"

#include <algorithm>
#include <array>
#include <functional>

namespace laplace {

namespace {

// Up to this length scanning all pairs for every merge is faster than queues.
constexpr size_t kShort = 64;
constexpr size_t kLongest = size_t{1} << 30;
constexpr uint32_t kNoNode = UINT32_MAX;

template <class T>
void push_lowest_first(std::vector<T>& heap, T value) {
  heap.push_back(value);
  std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

template <class T>
T pop_lowest(std::vector<T>& heap) {
  std::pop_heap(heap.begin(), heap.end(), std::greater<>());
  const T value = heap.back();
  heap.pop_back();
  return value;
}

}  // namespace

void PieceMerger::merge(std::string_view piece, std::vector<TokenId>& ids) {
  if (piece.size() <= kShort) return merge_short(piece, ids);
  for (; piece.size() > kLongest; piece.remove_prefix(kLongest)) {
    merge_long(piece.substr(0, kLongest), ids);
  }
  merge_long(piece, ids);
}

void PieceMerger::merge_short(std::string_view piece, std::vector<TokenId>& ids) {
  const MergeTable& table = tables_.table;
  std::array<TokenId, kShort> tokens;
  std::array<Merge, kShort> pairs;  // pairs[i]: of tokens i and i + 1
  size_t n = piece.size();
  for (size_t i = 0; i < n; ++i) tokens[i] = tables_.byte_ids[uint8_t(piece[i])];
  for (size_t i = 0; i + 1 < n; ++i) pairs[i] = table.find(tokens[i], tokens[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == Merge::kNone) break;
    tokens[best] = pairs[best].id;
    std::copy(tokens.begin() + best + 2, tokens.begin() + n, tokens.begin() + best + 1);
    if (best + 2 < n) {
      std::copy(pairs.begin() + best + 1, pairs.begin() + n - 1, pairs.begin() + best);
    }
    --n;
    if (best > 0) pairs[best - 1] = table.find(tokens[best - 1], tokens[best]);
    if (best + 1 < n) pairs[best] = table.find(tokens[best], tokens[best + 1]);
  }
  ids.insert(ids.end(), tokens.begin(), tokens.begin() + n);
}

void PieceMerger::Places::put(uint32_t place) {
  if (ascending.empty() || place > ascending.back()) {
    ascending.push_back(place);
  } else {
    push_lowest_first(others, place);
  }
}

uint32_t PieceMerger::Places::take_lowest() {
  const bool queue =
      taken < ascending.size() && (others.empty() || ascending[taken] <= others.front());
  return queue ? ascending[taken++] : pop_lowest(others);
}

PieceMerger::Places& PieceMerger::places_of(int32_t rank) {
  uint32_t& index = index_of_rank_[size_t(rank)];
  if (index == 0) {
    index = uint32_t(places_.size());
    places_.emplace_back().rank = rank;
  }
  return places_[index];
}

void PieceMerger::put_pair(uint32_t place) {
  Node& node = nodes_[place];
  node.rank = Merge::kNone;
  if (node.next == kNoNode) return;
  node.rank = tables_.table.find(node.id, nodes_[node.next].id).rank;
  if (node.rank == Merge::kNone) return;
  Places& places = places_of(node.rank);
  if (places.empty()) push_lowest_first(ranks_, node.rank);
  places.put(place);
}

void PieceMerger::merge_at(uint32_t place) {
  Node& node = nodes_[place];
  Node& gone = nodes_[node.next];
  node.id = tables_.merges[size_t(node.rank)].id;
  node.next = gone.next;
  gone.rank = Merge::kNone;
  if (node.next != kNoNode) nodes_[node.next].previous = place;
  if (node.previous != kNoNode) put_pair(node.previous);
  put_pair(place);
}

// Merges the places of a pair until none is left, or a lower rank came up (which only tokenizers do
// whose merges are not in the order of training).
void PieceMerger::merge_places(int32_t rank) {
  const uint32_t index = index_of_rank_[size_t(rank)];
  while (!places_[index].empty()) {
    const uint32_t place = places_[index].take_lowest();
    if (nodes_[place].rank != rank) continue;  // a token of the pair is in another merge by now
    merge_at(place);
    if (!ranks_.empty() && ranks_.front() < rank) {
      if (!places_[index].empty()) push_lowest_first(ranks_, rank);
      return;
    }
  }
}

void PieceMerger::merge_long(std::string_view piece, std::vector<TokenId>& ids) {
  const auto n = uint32_t(piece.size());
  nodes_.resize(n);
  index_of_rank_.resize(tables_.merges.size());
  places_.resize(1);
  for (uint32_t i = 0; i < n; ++i) {
    nodes_[i] = {tables_.byte_ids[uint8_t(piece[i])], i + 1 < n ? i + 1 : kNoNode,
                 i > 0 ? i - 1 : kNoNode, Merge::kNone};
  }
  for (uint32_t i = 0; i < n; ++i) put_pair(i);
  while (!ranks_.empty()) merge_places(pop_lowest(ranks_));
  for (uint32_t at = 0; at != kNoNode; at = nodes_[at].next) ids.push_back(nodes_[at].id);
  clear();
}

void PieceMerger::clear() {
  for (size_t i = 1; i < places_.size(); ++i) index_of_rank_[size_t(places_[i].rank)] = 0;
  places_.clear();
  if (nodes_.size() > size_t{1} << 20) nodes_ = {};  // an unusual piece: give its memory back
}

}  // namespace laplace
