// The merge loop of BPE training over distinct pieces with counts: see bpe_train.h for the rules.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace laplace {

struct CountedPiece {
  std::string_view bytes;
  int64_t count;
};

// At most `limit` merges, in rank order: entry i makes token 256 + i. `progress` is called with the
// number of merges so far. Pairs that would be longer than kMaxPieceBytes are passed over.
std::vector<std::pair<TokenId, TokenId>> find_merges(std::span<const CountedPiece> pieces,
                                                     int64_t limit, int64_t min_frequency,
                                                     const std::function<void(int64_t)>& progress);

}  // namespace laplace
