// The part of the caching allocator that maps memory into expandable segments and gives memory back.
#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "caching_allocator.h"

namespace zerokit {
namespace {

constexpr int64_t kAddressGranularity = 2 << 20;
constexpr int64_t kSmallPage = 2 << 20;  // kSmallBuffer, the mapping granularity of the small pool

int64_t pages(int64_t bytes, int64_t page_size) { return (bytes + page_size - 1) / page_size; }

}  // namespace

// ---- expandable segments ---------------------------------------------------------------------------------------

// DeviceCachingAllocator::find_expandable_block: the lowest run of free and unmapped blocks with room enough.
CachingAllocator::Block* CachingAllocator::find_expandable(const Request& request) {
  const auto has_room = [&request](const Block* block) {
    int64_t bytes = 0;
    while (bytes < request.size && block != nullptr && block->is_idle()) {
      bytes += block->size;
      block = block->next;
    }
    return bytes >= request.size;
  };
  const BlockSet& unmapped = request.pool->unmapped;
  for (auto key = unmapped.lower_bound({request.stream, 0, 0, nullptr});
       key != unmapped.end() && key->stream == request.stream; ++key) {
    Block* candidate = key->block;
    Block* before = candidate->previous;
    if (before != nullptr && before->is_idle()) candidate = before;
    if (has_room(candidate)) return candidate;
  }
  return new_expandable_segment(request);
}

// ExpandableSegment::ExpandableSegment: address space for 9/8 of the device's memory, none of it mapped, or for a larger
// request, which PyTorch could not place.
CachingAllocator::Block* CachingAllocator::new_expandable_segment(const Request& request) {
  const int64_t page_size = request.pool->is_small ? kSmallPage : options_.large_segment_size;
  const int64_t wanted = std::max(options_.total_memory + options_.total_memory / 8, request.size);
  Block* block = new_segment(request, pages(wanted, page_size) * page_size, page_size)->first;
  block->mapped = false;
  insert_unmapped(block);
  return block;
}

// DeviceCachingAllocator::try_allocate_expandable_block.
CachingAllocator::Block* CachingAllocator::grow_expandable(const Request& request) {
  Block* block = find_expandable(request);
  if (!block->mapped) map(block, std::min(block->size, request.size));
  while (block->size < request.size) {
    Block* next = block->next;  // unmapped; mapping merges `block` into it
    map(next, std::min(request.size - block->size, next->size));
    block = next;
  }
  remove_from_set(block);
  return block;
}

// DeviceCachingAllocator::map_block: whole pages from the block's low end become free memory.
void CachingAllocator::map(Block* block, int64_t bytes) {
  const int64_t page_size = block->segment->page_size;
  const int64_t mapped = pages(bytes, page_size) * page_size;
  remove_from_set(block);
  block->mapped = true;
  if (mapped < block->size) {
    Block* rest =
        new_block(block->segment, block->address + static_cast<uint64_t>(mapped), block->size - mapped);
    rest->mapped = false;
    link(block, rest, block->next);
    insert_unmapped(rest);
    block->size = mapped;
  }
  merge(block, block->previous);
  merge(block, block->next);
  insert_free(block);
  count(stats_.reserved_bytes, *block->segment->pool, mapped);
  if (options_.clock != nullptr) options_.clock->reserve(mapped);
}

// DeviceCachingAllocator::unmap_block: the whole pages of a free block lose their memory. A segment without any
// memory is gone (release_expandable_segment).
void CachingAllocator::unmap(Block* block) {
  Segment* segment = block->segment;
  const int64_t page_size = segment->page_size;
  const auto offset = static_cast<int64_t>(block->address - segment->address);
  const int64_t begin = pages(offset, page_size) * page_size;
  const int64_t end = (offset + block->size) / page_size * page_size;
  if (begin >= end) return;
  remove_from_set(block);
  if (begin > offset) {
    Block* before = new_block(segment, block->address, begin - offset);
    link(block->previous, before, block);
    insert_free(before);
  }
  if (end < offset + block->size) {
    Block* after =
        new_block(segment, segment->address + static_cast<uint64_t>(end), offset + block->size - end);
    link(block, after, block->next);
    insert_free(after);
  }
  block->address = segment->address + static_cast<uint64_t>(begin);
  block->size = end - begin;
  block->mapped = false;
  merge(block, block->previous);
  merge(block, block->next);
  count(stats_.reserved_bytes, *segment->pool, begin - end);
  if (options_.clock != nullptr) options_.clock->give_back();
  if (block->is_split()) {
    insert_unmapped(block);
  } else {
    discard(block);
    segments_.erase(segment->address);
  }
}

// ---- giving back -----------------------------------------------------------------------------------------------

// DeviceCachingAllocator::free_block.
void CachingAllocator::return_to_pool(Block* block) {
  const Segment& segment = *block->segment;
  const Pool& pool = *segment.pool;
  const int64_t size = block->size;
  const int64_t requested_size = block->requested_size;
  int64_t change_in_split_blocks = 0;
  int64_t change_in_split_bytes = 0;
  for (Block* neighbour : std::array<Block*, 2>{block->previous, block->next}) {
    const int64_t absorbed = merge(block, neighbour);
    change_in_split_blocks -= absorbed > 0 ? 1 : 0;
    change_in_split_bytes -= absorbed;
  }
  insert_free(block);
  if (block->is_split()) {
    change_in_split_blocks += 1;
    change_in_split_bytes += block->size;
  }
  if (!segment.expandable()) {
    count(stats_.inactive_split, pool, change_in_split_blocks);
    count(stats_.inactive_split_bytes, pool, change_in_split_bytes);
  }
  count(stats_.active, pool, -1);
  count(stats_.active_bytes, pool, -size);
  count(stats_.requested_bytes, pool, -requested_size);
}

// DeviceCachingAllocator::try_merge_blocks: `block` absorbs its neighbour. Returns the bytes gained, or 0.
int64_t CachingAllocator::merge(Block* block, Block* neighbour) {
  if (neighbour == nullptr || !neighbour->is_idle() || neighbour->mapped != block->mapped) return 0;
  if (block->previous == neighbour) {
    block->address = neighbour->address;
    link(neighbour->previous, block, block->next);
  } else {
    link(block->previous, block, neighbour->next);
  }
  const int64_t gained = neighbour->size;
  block->size += gained;
  remove_from_set(neighbour);
  discard(neighbour);
  return gained;
}

bool CachingAllocator::is_complete(const Event& event) const {
  return options_.clock != nullptr ? options_.clock->has_happened(event.recorded) : event.due <= allocations_;
}

// DeviceCachingAllocator::process_events, and with `wait` synchronize_and_free_events.
void CachingAllocator::complete_events(bool wait) {
  for (auto entry = events_.begin(); entry != events_.end();) {
    std::deque<Event>& queue = entry->second;
    while (!queue.empty() && (wait || is_complete(queue.front()))) {
      if (wait && options_.clock != nullptr) options_.clock->wait_for(queue.front().recorded);
      Block* block = queue.front().block;
      queue.pop_front();
      if (--block->pending_events == 0) return_to_pool(block);
    }
    entry = queue.empty() ? events_.erase(entry) : std::next(entry);
  }
}

// DeviceCachingAllocator::release_cached_blocks.
void CachingAllocator::empty_cache() {
  if (begun_pool_ == nullptr) {
    complete_events(/*wait=*/true);
    release_blocks(large_pool_);
    release_blocks(small_pool_);
  }
  release_unused_pools();
}

// The second half of release_cached_blocks: pools of graphs that are gone (graph_pools_freeable).
void CachingAllocator::release_unused_pools() {
  for (auto entry = private_pools_.begin(); entry != private_pools_.end();) {
    PrivatePool& pool = entry->second;
    if (pool.uses > 0) {
      ++entry;
      continue;
    }
    release_blocks(pool.small);
    release_blocks(pool.large);
    const bool is_empty = std::none_of(segments_.begin(), segments_.end(), [&pool](const auto& segment) {
      return segment.second.pool == &pool.small || segment.second.pool == &pool.large;
    });
    entry = is_empty ? private_pools_.erase(entry) : std::next(entry);
  }
}

// DeviceCachingAllocator::release_blocks. Unmapping changes the set of free blocks, so those come second.
void CachingAllocator::release_blocks(Pool& pool) {
  std::vector<Block*> expandable;
  for (auto key = pool.free.begin(); key != pool.free.end();) {
    Block* block = (key++)->block;
    if (block->segment->expandable()) {
      expandable.push_back(block);
    } else if (!block->is_split()) {
      release_segment(block);
    }
  }
  for (Block* block : expandable) unmap(block);
}

// DeviceCachingAllocator::release_block: cudaFree of a segment that is one free block.
void CachingAllocator::release_segment(Block* block) {
  const Segment& segment = *block->segment;
  const Pool& pool = *segment.pool;
  count(stats_.segment, pool, -1);
  count(stats_.reserved_bytes, pool, -block->size);
  if (options_.clock != nullptr) options_.clock->give_back();
  remove_from_set(block);
  discard(block);
  segments_.erase(segment.address);
}

// ---- bookkeeping -----------------------------------------------------------------------------------------------

CachingAllocator::Segment* CachingAllocator::new_segment(const Request& request, int64_t size, int64_t page_size) {
  const uint64_t address = next_address_;
  next_address_ += static_cast<uint64_t>(pages(size, kAddressGranularity) * kAddressGranularity);
  Segment* segment =
      &segments_.emplace(address, Segment{address, size, request.stream, request.pool, page_size, nullptr})
           .first->second;
  segment->first = new_block(segment, address, size);
  return segment;
}

CachingAllocator::Block* CachingAllocator::new_block(Segment* segment, uint64_t address, int64_t size) {
  Block* block = nullptr;
  if (discarded_.empty()) {
    block = &blocks_.emplace_back();
  } else {
    block = discarded_.back();
    discarded_.pop_back();
    *block = Block();
  }
  block->segment = segment;
  block->address = address;
  block->size = size;
  return block;
}

void CachingAllocator::discard(Block* block) { discarded_.push_back(block); }

// Makes `block` the only one between its two neighbours.
void CachingAllocator::link(Block* previous, Block* block, Block* next) {
  block->previous = previous;
  block->next = next;
  (previous != nullptr ? previous->next : block->segment->first) = block;
  if (next != nullptr) next->previous = block;
}

void CachingAllocator::insert_free(Block* block) {
  Pool& pool = *block->segment->pool;
  block->position = pool.free.insert({block->segment->stream, block->size, block->address, block}).first;
}

void CachingAllocator::insert_unmapped(Block* block) {
  BlockSet& unmapped = block->segment->pool->unmapped;
  block->position = unmapped.insert({block->segment->stream, 0, block->address, block}).first;
}

void CachingAllocator::remove_from_set(Block* block) {
  Pool& pool = *block->segment->pool;
  (block->mapped ? pool.free : pool.unmapped).erase(block->position);
}

void CachingAllocator::count(AllocatorStats::ByPool& stat, const Pool& pool, int64_t change) {
  stat[AllocatorStats::kAll].change(change);
  stat[pool.is_small ? AllocatorStats::kSmallPool : AllocatorStats::kLargePool].change(change);
}

}  // namespace zerokit
