// Byte-pair merging inside one piece: as long as two neighbours merge, the pair of lowest rank, the
// leftmost among equals, becomes one token.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tables.h"

namespace laplace {

// Holds memory for reuse; one per thread.
class PieceMerger {
 public:
  // Appends the ids of `piece`. Time grows as n log n with its length: short pieces are scanned,
  // long ones keep their pairs in a heap. A piece above 1 GiB is cut every 1 GiB, so that positions
  // fit 32 bits.
  void merge(const Tokenizer::Tables& tables, std::string_view piece, std::vector<TokenId>& ids);

 private:
  void merge_short(const Tokenizer::Tables& tables, std::string_view piece,
                   std::vector<TokenId>& ids);
  void merge_long(const Tokenizer::Tables& tables, std::string_view piece,
                  std::vector<TokenId>& ids);
  void put_pair(const Tokenizer::Tables& tables, uint32_t at);

  // One token of the piece in merge_long, at the place of its first byte.
  struct Node {
    TokenId id;
    uint32_t next;
    uint32_t previous;
    int32_t rank;  // of its pair with the next, Merge::kNone without
  };
  std::vector<Node> nodes_;
  std::vector<uint64_t> heap_;  // rank << 32 | place; entries whose rank has changed are stale
};

}  // namespace laplace
