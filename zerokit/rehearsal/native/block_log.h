// The log of blocks: when each was made and released, and what is known of it.
#pragma once

#include "blocks.h"

namespace zerokit {

// Gives a new block its id and its line in the records.
void enter(Block& block, uint64_t address);
void leave(Block& block, uint64_t address);
// Appends a line; `bytes` is signed.
void log_change(const Block& block, int64_t bytes, uint64_t address);

// Around a fork.
void lock_log();
void unlock_log();

}  // namespace zerokit
