// Where a long text may be cut so that the parts' token ids, one after another, are the whole's.
#pragma once

#include <cstddef>
#include <string_view>

namespace laplace {

// The last place in (0, text.size()) where GPT-2's pattern breaks for certain, 0 when none is
// known. Prefers to cut before a newline, then before other white space, then between ASCII
// characters of two classes. What follows the end of `text` does not matter.
size_t certain_cut(std::string_view text);

}  // namespace laplace
