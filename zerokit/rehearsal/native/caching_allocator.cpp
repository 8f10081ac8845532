#include "caching_allocator.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "rounding.h"

namespace zerokit {
namespace {

// c10/core/AllocatorConfig.h.
constexpr int64_t kMinBlockSize = 512;
constexpr int64_t kSmallSize = 1 << 20;        // largest request of the small pool
constexpr int64_t kSmallSegment = 2 << 20;     // kSmallBuffer
constexpr int64_t kMinLargeAlloc = 10 << 20;   // smaller requests of the large pool share a segment
constexpr int64_t kRoundLarge = 2 << 20;

bool is_power_of_two(int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

int64_t power_of_two_floor(int64_t value) {
  int64_t power = 1;
  while (power <= value / 2) power *= 2;
  return power;
}

// DeviceCachingAllocator::roundup_power2_next_division: with 4 divisions, 84 MiB becomes 96, for the
// steps between 64 and 128 MiB are 16 MiB each.
int64_t round_up_to_division(int64_t bytes, int64_t divisions) {
  if (is_power_of_two(bytes)) return bytes;
  return round_up(bytes, power_of_two_floor(bytes) / divisions);
}

// The defaults that follow from other settings.
AllocatorOptions completed(AllocatorOptions options) {
  if (options.max_non_split_rounding_size < 0) options.max_non_split_rounding_size = options.large_segment_size;
  if (options.max_split_size < 0) options.max_split_size = std::numeric_limits<int64_t>::max();
  return options;
}

}  // namespace

bool CachingAllocator::Key::operator<(const Key& other) const {
  return std::tie(stream, size, address) < std::tie(other.stream, other.size, other.address);
}

CachingAllocator::CachingAllocator(AllocatorOptions options) : options_(completed(options)) {}

// ---- public calls ----------------------------------------------------------------------------------------------

// DeviceCachingAllocator::malloc.
CachingAllocator::Allocation* CachingAllocator::allocate(int64_t bytes, int stream) {
  ++allocations_;
  // While a graph is captured, no event can be asked.
  if (begun_pool_ == nullptr) complete_events(/*wait=*/false);
  Request request;
  request.size = round_size(bytes);
  request.requested_size = bytes;
  request.segment_size = segment_size(request.size);
  request.stream = stream;
  Pool& small = begun_pool_ != nullptr ? begun_pool_->small : small_pool_;
  Pool& large = begun_pool_ != nullptr ? begun_pool_->large : large_pool_;
  request.pool = request.size <= kSmallSize ? &small : &large;
  Block* block = take_free_block(request);
  if (block == nullptr) block = grow(request);
  return hand_out(block, request);
}

// DeviceCachingAllocator::recordStream.
void CachingAllocator::record_stream(Allocation* allocation, int stream) {
  if (stream == allocation->segment->stream) return;
  std::vector<int>& streams = allocation->other_streams;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

// DeviceCachingAllocator::free and insert_events.
void CachingAllocator::release(Allocation* allocation) {
  const Pool& pool = *allocation->segment->pool;
  allocation->allocated = false;
  count(stats_.allocation, pool, -1);
  count(stats_.allocated_bytes, pool, -allocation->size);
  if (allocation->other_streams.empty()) {
    return_to_pool(allocation);
    return;
  }
  ++awaited_blocks_;
  const bool only_when_synchronized = options_.event_lag < 0;
  const int64_t due =
      only_when_synchronized ? std::numeric_limits<int64_t>::max() : allocations_ + 1 + options_.event_lag;
  for (const int stream : std::exchange(allocation->other_streams, {})) {
    ++allocation->pending_events;
    events_[stream].push_back({allocation, due, options_.clock != nullptr ? options_.clock->record(stream) : -1});
  }
}

void CachingAllocator::synchronize() {
  for (auto& [stream, queue] : events_) {
    for (Event& event : queue) event.due = 0;
  }
}

// DeviceCachingAllocator::beginAllocateToPool, endAllocateToPool and releasePool.
void CachingAllocator::begin_pool(int64_t id) {
  begun_pool_ = &private_pools_[id];
  ++begun_pool_->uses;
}

void CachingAllocator::end_pool() { begun_pool_ = nullptr; }

void CachingAllocator::release_pool(int64_t id) {
  const auto found = private_pools_.find(id);
  if (found != private_pools_.end() && found->second.uses > 0) --found->second.uses;
}

// DeviceCachingAllocator::resetPeakStats.
void CachingAllocator::reset_peak() {
  for (const auto stat : AllocatorStats::kAllStats) {
    for (AllocatorStats::Stat& pool : stats_.*stat) pool.peak = pool.current;
  }
}

// ---- sizes -----------------------------------------------------------------------------------------------------

int64_t CachingAllocator::round_size(int64_t bytes) const {
  if (bytes < kMinBlockSize) return kMinBlockSize;
  const int64_t divisions = options_.roundup_power2_divisions;
  if (divisions > 1 && bytes > kMinBlockSize * divisions) return round_up_to_division(bytes, divisions);
  return round_up(bytes, kMinBlockSize);
}

// DeviceCachingAllocator::get_allocation_size.
int64_t CachingAllocator::segment_size(int64_t rounded) const {
  if (rounded <= kSmallSize) return kSmallSegment;
  if (rounded < kMinLargeAlloc) return options_.large_segment_size;
  return round_up(rounded, kRoundLarge);
}

bool CachingAllocator::should_split(const Block& block, int64_t size) const {
  const int64_t remainder = block.size - size;
  if (block.segment->pool->is_small || options_.expandable_segments) return remainder >= kMinBlockSize;
  return !is_oversize(size) && remainder > kSmallSize;
}

bool CachingAllocator::is_oversize(int64_t size) const { return size >= options_.max_split_size; }

// ---- finding a block -------------------------------------------------------------------------------------------

// DeviceCachingAllocator::get_free_block: the smallest free block of the stream that is large enough. A free block
// that touches unmapped space counts with all it could grow to.
CachingAllocator::Block* CachingAllocator::take_free_block(const Request& request) {
  BlockSet& free = request.pool->free;
  auto found = free.lower_bound({request.stream, request.size, 0, nullptr});
  if (found == free.end() || found->stream != request.stream) return nullptr;
  if (options_.expandable_segments) {
    const auto potential = [](const Block* block) {
      return block->size + (block->next != nullptr && !block->next->mapped ? block->next->size : 0);
    };
    for (auto next = std::next(found); next != free.end() && next->stream == request.stream &&
                                       potential(next->block) < potential(found->block);
         ++next) {
      found = next;
    }
  }
  Block* block = found->block;
  if (!is_oversize(request.size) && is_oversize(block->size)) return nullptr;
  if (is_oversize(request.size) && block->size >= request.size + options_.max_non_split_rounding_size) {
    return nullptr;
  }
  free.erase(found);
  return block;
}

// DeviceCachingAllocator::alloc_block.
CachingAllocator::Block* CachingAllocator::grow(const Request& request) {
  if (options_.expandable_segments) return grow_expandable(request);
  Segment* segment = new_segment(request, request.segment_size, /*page_size=*/0);
  count(stats_.segment, *request.pool, 1);
  count(stats_.reserved_bytes, *request.pool, segment->size);
  if (options_.clock != nullptr) options_.clock->reserve(request.segment_size);
  return segment->first;
}

// The first half of DeviceCachingAllocator::alloc_found_block: the request gets the low end, the rest is free.
CachingAllocator::Block* CachingAllocator::split(Block* block, const Request& request) {
  Block* taken = new_block(block->segment, block->address, request.size);
  link(block->previous, taken, block);
  block->address += static_cast<uint64_t>(request.size);
  block->size -= request.size;
  insert_free(block);
  return taken;
}

// DeviceCachingAllocator::alloc_found_block.
CachingAllocator::Block* CachingAllocator::hand_out(Block* block, const Request& request) {
  const Pool& pool = *request.pool;
  const bool was_split = block->is_split();
  const bool expandable = block->segment->expandable();
  if (should_split(*block, request.size)) {
    Block* remainder = block;
    block = split(remainder, request);
    if (!expandable) {
      count(stats_.inactive_split_bytes, pool, was_split ? -block->size : remainder->size);
      count(stats_.inactive_split, pool, was_split ? 0 : 1);
    }
  } else if (was_split && !expandable) {
    count(stats_.inactive_split_bytes, pool, -block->size);
    count(stats_.inactive_split, pool, -1);
  }
  block->allocated = true;
  block->requested_size = request.requested_size;
  count(stats_.allocation, pool, 1);
  count(stats_.allocated_bytes, pool, block->size);
  count(stats_.active, pool, 1);
  count(stats_.active_bytes, pool, block->size);
  count(stats_.requested_bytes, pool, block->requested_size);
  return block;
}

}  // namespace zerokit
