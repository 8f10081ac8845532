// Pages of host memory: which are in memory, and how many an operator may fill that reads no data.
//
// Results of data take as much memory as the data. Results of nothing, such as a mask or a buffer filled with a number,
// may be larger than this machine: they are computed if they are small, and else left without values.
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>

#include "blocks.h"

namespace zerokit {

// Bytes of host memory that have been written or read: in memory, or swapped out. Counts no further than `enough`.
int64_t resident_bytes(const void* begin, int64_t bytes, int64_t enough = std::numeric_limits<int64_t>::max());

// The memory between the first and the last element of a tensor.
struct Extent {
  explicit Extent(const at::Tensor& tensor);
  Extent(char* begin, int64_t bytes) : begin(begin), bytes(bytes) {}
  char* begin;
  int64_t bytes;
};

// What an operator finds in its arguments and where it would go beyond them, in bytes.
struct Reach {
  void add(const at::Tensor& tensor);
  // Whether so many bytes beside the data are few enough to be filled.
  bool allows(int64_t bytes) const { return bytes <= most(); }
  int64_t most() const;
  // Whether so many bytes can have come from the data.
  bool explains(int64_t bytes) const;

  int64_t data = 0;
  int64_t nothing = 0;  // of the arguments, that nobody has written
};

// Notes that `bytes` of a block came from nothing; they are free again when it is released or loses its contents.
void count_from_nothing(Block& block, int64_t bytes);
void uncount_from_nothing(Block& block);

// Pageable memory that is asked for on this thread while one of these lives is about to be filled: beyond `bytes`,
// TooManyPages is thrown.
struct TooManyPages {};
struct PagesAllowed {
  explicit PagesAllowed(int64_t bytes = std::numeric_limits<int64_t>::max());
  ~PagesAllowed();
  PagesAllowed(const PagesAllowed&) = delete;
  PagesAllowed& operator=(const PagesAllowed&) = delete;

 private:
  int64_t around_;
};
void take_allowed_pages(int64_t bytes);

// Hands the whole pages of a memory back to the system: they are zeros when somebody comes to them again.
void hand_back_pages(const Extent& extent);
// Zeros over contiguous memory of a block with pages of its own: whole pages are handed back to the system.
void zero_pages(Block& block, const Extent& extent);
// Copies what has been written; pages of the target that nobody has written stay so.
void copy_resident(char* target, const char* source, int64_t bytes);

}  // namespace zerokit
