// Byte-pair merging inside one piece: as long as two neighbours merge, the pair of lowest rank, the
// leftmost among equals, becomes one token.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tables.h"

namespace laplace {

// Merges pieces with one tokenizer; holds memory for reuse, so one per thread.
class PieceMerger {
 public:
  // `tables` must outlive the merger.
  explicit PieceMerger(const Tokenizer::Tables& tables) : tables_(tables) {}

  // Appends the ids of `piece`. Short pieces are scanned anew for each merge; long ones keep their
  // pairs in queues by rank, so that time grows about linearly with their length, and never faster
  // than n log n. A piece above 1 GiB is cut every 1 GiB, so that places fit 32 bits.
  void merge(std::string_view piece, std::vector<TokenId>& ids);

 private:
  // One token of a long piece, at the place of its first byte.
  struct Node {
    TokenId id;
    uint32_t next;
    uint32_t previous;
    int32_t rank;  // of its pair with the next token, Merge::kNone without
  };
  // The places where a pair is, or was. Places nearly always come in ascending order (a pair comes
  // up while the younger of its tokens is made, from left to right); the others wait in a heap.
  struct Places {
    int32_t rank = Merge::kNone;
    size_t taken = 0;  // of `ascending`
    std::vector<uint32_t> ascending;
    std::vector<uint32_t> others;  // a heap, lowest first

    bool empty() const { return taken == ascending.size() && others.empty(); }
    void put(uint32_t place);
    uint32_t take_lowest();
  };

  void merge_short(std::string_view piece, std::vector<TokenId>& ids);
  void merge_long(std::string_view piece, std::vector<TokenId>& ids);
  void merge_places(int32_t rank);
  void merge_at(uint32_t place);
  void put_pair(uint32_t place);
  Places& places_of(int32_t rank);
  void clear();

  const Tokenizer::Tables& tables_;
  std::vector<Node> nodes_;
  std::vector<int32_t> ranks_;           // a heap, lowest first: ranks with places
  std::vector<uint32_t> index_of_rank_;  // into places_, 0: none yet
  std::vector<Places> places_;           // [0] is not used
};

}  // namespace laplace
