// Every allocation of the rehearsal: what it is, when it was made and released, and whether its contents mean anything.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "caching_allocator.h"
#include "run_state.h"

namespace zerokit {

// Where the bytes would lie on the cluster. The numbers are part of the recording's format (recording.py).
enum class Space : uint8_t { device = 0, pageable = 1, pinned = 2 };

// What the contents of a block mean.
//   known      they are what a real run would hold, and are computed for real
//   untouched  a large host block that nobody has written yet: all zeros, and no page of it is resident
//   made_up    they depend on parameters, which hold nothing: results are sized, never computed
enum class Contents : uint8_t { known, untouched, made_up };

// Tensors below this size are always computed, so that scripts can read losses, flags and counters.
constexpr int64_t kSmallBytes = 64 * 1024;
// Integers and booleans (token ids, masks, expert indices) decide shapes, and are computed up to this size: which 8 of
// 256 experts each of 8,192 tokens goes to takes all of it.
constexpr int64_t kComputedBytes = 128 * 1024 * 1024;
// Integers of 8 bits are so up to this size: larger ones are quantized weights, and decide nothing.
constexpr int64_t kComputedOctets = 1024 * 1024;
// Host blocks from this size on get pages of their own, which the kernel fills with zeros at first touch.
constexpr int64_t kOwnPagesBytes = 1024 * 1024;
// Host blocks below this size are counted, but get no line in the event log.
constexpr int64_t kLoggedHostBytes = 64 * 1024;
// From this size on an allocation asks Python where it comes from.
constexpr int64_t kTracedBytes = 256 * 1024;

struct Block {
  int64_t id;
  void* data;
  int64_t bytes;    // asked for
  int64_t counted;  // what the allocator of its space charges for it; 0 while counting is off
  Space space;
  Contents contents;
  bool own_pages;
  CachingAllocator::Allocation* ordinary;    // in the model of the default allocator; device blocks only
  CachingAllocator::Allocation* expandable;  // in the model with expandable_segments:True
  bool never_filled = false;  // a parameter, or a weight of a checkpoint: what is copied into it is dropped
  int64_t from_nothing = 0;   // bytes whose values come from no data (host_pages.h)
};

// One line of the event log; `bytes` is negative for a release. Layout: recording.EVENT.
struct Event {
  int64_t time_ns;
  int64_t block;
  int64_t bytes;
  uint64_t address;
  int32_t step;
  int16_t stream;
  uint8_t space;
  uint8_t phase;
};

// What is known of a block, by its id. Layout: recording.BLOCK.
struct BlockRecord {
  int64_t bytes;
  int32_t site;
  int32_t op;
  int32_t name;
  uint8_t category;
  int8_t dtype;
  uint8_t dimensions;
  uint8_t phase;
  int64_t shape[6];
};
static_assert(sizeof(Event) == 40 && sizeof(BlockRecord) == 72, "recording.py reads these layouts");

// Behind `DataPtr`s of the given space; never null. Device memory is an arena of addresses without pages.
c10::Allocator* device_allocator();
c10::Allocator* pageable_allocator();
c10::Allocator* pinned_allocator();

// The block that a storage's memory belongs to, or nullptr where somebody else allocated it.
Block* block_of(const c10::StorageImpl& storage);
inline Block* block_of(const c10::Storage& storage) { return block_of(*storage.unsafeGetStorageImpl()); }
// The block of the virtual device in which `address` lies, or nullptr.
Block* device_block_at(const void* address);
bool is_pinned_address(const void* address);

// Gives `storage` a new block of `bytes`, of the space that the storage's device and old block say; contents are kept
// as far as they are known.
void resize_storage(c10::StorageImpl& storage, int64_t bytes);

// The block stays taken in the allocators until `stream` has caught up.
void record_block_stream(Block& block, int stream);

// Contents become made up; pages of their own are handed back to the system.
void forget_contents(Block& block);
// True if no page of an untouched block has been written behind the dispatcher's back (by numpy, say).
bool is_still_untouched(Block& block);

// Marks what a block is for; `name` is an index into the caller's names, or -1 to leave it.
void label(Block& block, uint8_t category, int32_t name);
// Says what the block of a fresh tensor holds.
void describe(Block& block, int8_t dtype, c10::IntArrayRef shape);

// While on, this thread's pageable allocations count as pinned at exactly their size: memory that a library locks
// itself (mlock).
void set_page_locking(bool on);

// Copies at most `count` entries, the oldest first, while other threads go on writing.
int64_t event_count();
void copy_events(Event* target, int64_t count);
int64_t block_count();
void copy_blocks(BlockRecord* target, int64_t count);

// Starts new peaks in both models of the device's allocator.
void reset_peak();

// Whoever calls a model holds this.
std::mutex& models_mutex();
CachingAllocator& ordinary_model();
CachingAllocator& expandable_model();
// Replaces both models; only before the first allocation.
void configure_models(AllocatorOptions options);
// True if torch.cuda answers from the expandable model (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True).
void answer_from_expandable(bool on);
CachingAllocator& answering_model();

// A temporary that a kernel allocates on the device and frees before it returns.
struct DeviceScratch {
  explicit DeviceScratch(int64_t bytes);
  ~DeviceScratch();
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;

 private:
  c10::DataPtr memory_;
};

}  // namespace zerokit
