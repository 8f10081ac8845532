// Sizes that are multiples.
#pragma once

#include <cstdint>

namespace zerokit {

// The smallest multiple of `multiple` that is at least `value`; both are positive.
inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace zerokit
