// A model of PyTorch's CUDA caching allocator: the same blocks, segments and statistics, without a device.
//
// The rules are those of torch 2.13: c10/cuda/CUDACachingAllocator.cpp (DeviceCachingAllocator) and
// c10/core/AllocatorConfig.h. Comments at the definitions name the function that each rule comes from. Left out: limits of
// memory, pools with an allocator of their own, IPC, tracing. Sizes are bytes. The caller serialises the calls.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <vector>

namespace zerokit {

// What the allocator has to do with time. Events are numbers, in the order in which they were recorded.
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  virtual int64_t record(int stream) = 0;
  virtual bool has_happened(int64_t event) = 0;
  virtual void wait_for(int64_t event) = 0;
  virtual void reserve(int64_t bytes) = 0;  // cudaMalloc
  virtual void give_back() = 0;             // cudaFree
};

// The settings of PYTORCH_CUDA_ALLOC_CONF, as `allocator_settings.py` has checked them. The device has no limit: a run
// that does not fit shows by how much. The defaults are PyTorch's.
struct AllocatorOptions {
  bool expandable_segments = false;
  int64_t max_split_size = -1;            // -1: every block may be split
  int64_t roundup_power2_divisions = 0;   // one power of two for all sizes; 0 and 1: off
  int64_t large_segment_size = 20 << 20;  // large_segment_size_mb in bytes
  int64_t max_non_split_rounding_size = -1;  // max_non_split_rounding_mb in bytes; -1: `large_segment_size`
  int64_t total_memory = int64_t{1} << 40;   // sizes the address space of an expandable segment

  // Without a clock: a released block that another stream used (record_stream) is free again at the (event_lag + 1)th
  // allocation after its release, or with -1 only when the host synchronizes.
  int64_t event_lag = 1;
  // Answers in its place, if there is one. Not owned.
  DeviceClock* clock = nullptr;
};

// The statistics of torch.cuda.memory_stats under the same names.
struct AllocatorStats {
  struct Stat {
    int64_t current = 0;
    int64_t peak = 0;
    int64_t allocated = 0;  // sum of all increases
    int64_t freed = 0;      // sum of all decreases

    void change(int64_t amount) {
      current += amount;
      if (current > peak) peak = current;
      if (amount > 0) {
        allocated += amount;
      } else {
        freed -= amount;
      }
    }
  };
  enum PoolIndex { kAll, kSmallPool, kLargePool, kPoolCount };
  using ByPool = std::array<Stat, kPoolCount>;

  ByPool allocation;            // count of blocks that the program holds
  ByPool segment;               // count of cudaMalloc'ed segments (expandable ones do not count)
  ByPool active;                // count of blocks held by the program or awaiting another stream
  ByPool inactive_split;        // count of free blocks that share a segment with others (not expandable)
  ByPool allocated_bytes;       // whole blocks: rounding and unsplit remainders included
  ByPool reserved_bytes;
  ByPool active_bytes;
  ByPool inactive_split_bytes;
  ByPool requested_bytes;       // what the program requested; falls when the block stops being active

  // In the order of backend.STATS.
  static constexpr ByPool AllocatorStats::*kAllStats[] = {
      &AllocatorStats::allocation,      &AllocatorStats::segment,        &AllocatorStats::active,
      &AllocatorStats::inactive_split,  &AllocatorStats::allocated_bytes, &AllocatorStats::reserved_bytes,
      &AllocatorStats::active_bytes,    &AllocatorStats::inactive_split_bytes, &AllocatorStats::requested_bytes};
};

class CachingAllocator {
 public:
  explicit CachingAllocator(AllocatorOptions options);
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  struct Allocation;  // the pointer is valid until `release`

  Allocation* allocate(int64_t bytes, int stream);  // bytes > 0
  void record_stream(Allocation* allocation, int stream);
  void release(Allocation* allocation);

  // As in PyTorch the events are complete from here on, and the blocks leave `active` at the next allocation or
  // `empty_cache`.
  void synchronize();
  void empty_cache();
  void reset_peak();

  // The private pool of a CUDA graph: what is allocated between `begin_pool` and `end_pool` comes from it, and goes
  // back to it. Each `begin_pool` is a use, which `release_pool` ends; without any, `empty_cache` gives its free
  // memory back.
  void begin_pool(int64_t id);
  void end_pool();
  void release_pool(int64_t id);

  const AllocatorStats& stats() const { return stats_; }
  // Blocks that were released while another stream used them (record_stream).
  int64_t awaited_blocks() const { return awaited_blocks_; }

 private:
  friend class AllocatorInspector;  // of the tests
  using Block = Allocation;

  struct Key {  // the order of BlockComparatorSize: best fit is the first key that is not less
    int stream;
    int64_t size;
    uint64_t address;
    Block* block;
    bool operator<(const Key& other) const;
  };
  using BlockSet = std::set<Key>;

  struct Pool {
    bool is_small;
    BlockSet free;
    BlockSet unmapped;  // parts of expandable segments without memory; keys with size 0, so by address
  };

  struct PrivatePool {
    Pool small{true, {}, {}};
    Pool large{false, {}, {}};
    int uses = 0;
  };

  struct Segment {
    uint64_t address;
    int64_t size;  // for an expandable one, of the whole address space
    int stream;
    Pool* pool;
    int64_t page_size;  // mapping granularity of an expandable segment; 0: cudaMalloc'ed
    Block* first;
    bool expandable() const { return page_size > 0; }
  };

 public:
  struct Allocation {
    uint64_t address = 0;  // simulated
    int64_t size = 0;      // its share of `allocated_bytes`
    // The rest is for the allocator alone.
    Segment* segment = nullptr;
    Block* previous = nullptr;  // neighbours in the segment
    Block* next = nullptr;
    int64_t requested_size = 0;
    BlockSet::iterator position;  // in the pool's `free` or `unmapped`, while the block is in it
    std::vector<int> other_streams;
    int pending_events = 0;
    bool allocated = false;
    bool mapped = true;

    bool is_split() const { return previous != nullptr || next != nullptr; }
    bool is_idle() const { return !allocated && pending_events == 0 && other_streams.empty(); }
  };

 private:
  struct Request {
    int64_t size;  // rounded
    int64_t requested_size;
    int64_t segment_size;  // what cudaMalloc would be asked for
    int stream;
    Pool* pool;
  };

  struct Event {
    Block* block;
    int64_t due;  // number of the allocation at which it counts as complete
    int64_t recorded;  // the clock's event
  };

  // sizes
  int64_t round_size(int64_t bytes) const;
  int64_t segment_size(int64_t rounded) const;
  bool should_split(const Block& block, int64_t size) const;
  bool is_oversize(int64_t size) const;

  // finding a block
  Block* take_free_block(const Request& request);
  Block* grow(const Request& request);
  Block* split(Block* block, const Request& request);
  Block* hand_out(Block* block, const Request& request);

  // expandable segments
  Block* find_expandable(const Request& request);
  Block* new_expandable_segment(const Request& request);
  Block* grow_expandable(const Request& request);
  void map(Block* block, int64_t bytes);
  void unmap(Block* block);

  // giving back
  void return_to_pool(Block* block);
  int64_t merge(Block* block, Block* neighbour);
  bool is_complete(const Event& event) const;
  void complete_events(bool wait);
  void release_blocks(Pool& pool);
  void release_unused_pools();
  void release_segment(Block* block);

  // bookkeeping
  Segment* new_segment(const Request& request, int64_t size, int64_t page_size);
  Block* new_block(Segment* segment, uint64_t address, int64_t size);
  void discard(Block* block);
  void link(Block* previous, Block* block, Block* next);
  void insert_free(Block* block);
  void insert_unmapped(Block* block);
  void remove_from_set(Block* block);
  void count(AllocatorStats::ByPool& stat, const Pool& pool, int64_t change);

  AllocatorOptions options_;
  AllocatorStats stats_;
  Pool small_pool_{true, {}, {}};
  Pool large_pool_{false, {}, {}};
  std::map<int64_t, PrivatePool> private_pools_;  // by id
  PrivatePool* begun_pool_ = nullptr;
  std::map<uint64_t, Segment> segments_;         // by address
  std::map<int, std::deque<Event>> events_;      // by stream, oldest first
  std::deque<Block> blocks_;                     // storage; discarded blocks are used again
  std::vector<Block*> discarded_;
  // Segments never share an address, not even over time; addresses only break ties between free blocks of equal size.
  uint64_t next_address_ = uint64_t{0x7f} << 40;
  int64_t allocations_ = 0;                      // calls so far
  int64_t awaited_blocks_ = 0;
};

}  // namespace zerokit
