// C functions around zerokit::CachingAllocator for test_caching_allocator.py. Statistics and snapshots are text.
#include <chrono>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "caching_allocator.h"

using zerokit::AllocatorOptions;
using zerokit::AllocatorStats;
using zerokit::CachingAllocator;

namespace {

std::string text;

void write_stat(std::ostream& out, const std::string& name, const AllocatorStats::Stat& stat) {
  out << name << ".current " << stat.current << '\n' << name << ".peak " << stat.peak << '\n';
  out << name << ".allocated " << stat.allocated << '\n' << name << ".freed " << stat.freed << '\n';
}

void write_pools(std::ostream& out, const std::string& name, const AllocatorStats::ByPool& stats) {
  write_stat(out, name + ".all", stats[AllocatorStats::kAll]);
  write_stat(out, name + ".small_pool", stats[AllocatorStats::kSmallPool]);
  write_stat(out, name + ".large_pool", stats[AllocatorStats::kLargePool]);
}

}  // namespace

extern "C" {

// nullptr where the options are refused.
CachingAllocator* allocator_new(int expandable_segments, int64_t max_split_size, int64_t roundup_power2_divisions,
                                double garbage_collection_threshold, int64_t capacity, int64_t allowed_memory,
                                int64_t total_memory, int64_t event_lag, int64_t large_segment_size,
                                int64_t max_non_split_rounding_size) {
  AllocatorOptions options;
  options.expandable_segments = expandable_segments != 0;
  options.max_split_size = max_split_size;
  options.roundup_power2_divisions = roundup_power2_divisions;
  options.garbage_collection_threshold = garbage_collection_threshold;
  options.capacity = capacity;
  options.allowed_memory = allowed_memory;
  options.total_memory = total_memory;
  options.event_lag = event_lag;
  options.large_segment_size = large_segment_size;
  options.max_non_split_rounding_size = max_non_split_rounding_size;
  try {
    return new CachingAllocator(options);
  } catch (const std::invalid_argument&) {
    return nullptr;
  }
}

void allocator_delete(CachingAllocator* allocator) { delete allocator; }

CachingAllocator::Allocation* allocator_allocate(CachingAllocator* allocator, int64_t bytes, int stream) {
  try {
    return allocator->allocate(bytes, stream);
  } catch (const std::invalid_argument&) {
    return nullptr;
  }
}

int64_t allocator_allocated_size(CachingAllocator* allocator, CachingAllocator::Allocation* allocation) {
  return allocator->allocated_size(allocation);
}

uint64_t allocator_address(CachingAllocator* allocator, CachingAllocator::Allocation* allocation) {
  return allocator->address(allocation);
}

void allocator_record_stream(CachingAllocator* allocator, CachingAllocator::Allocation* allocation, int stream) {
  allocator->record_stream(allocation, stream);
}

void allocator_release(CachingAllocator* allocator, CachingAllocator::Allocation* allocation) {
  allocator->release(allocation);
}

void allocator_synchronize(CachingAllocator* allocator) { allocator->synchronize(); }

void allocator_synchronize_stream(CachingAllocator* allocator, int stream) { allocator->synchronize(stream); }

void allocator_empty_cache(CachingAllocator* allocator) { allocator->empty_cache(); }

void allocator_reset_peak(CachingAllocator* allocator) { allocator->reset_peak(); }

const char* allocator_stats(CachingAllocator* allocator) {
  const AllocatorStats& stats = allocator->stats();
  std::ostringstream out;
  write_pools(out, "allocation", stats.allocation);
  write_pools(out, "segment", stats.segment);
  write_pools(out, "active", stats.active);
  write_pools(out, "inactive_split", stats.inactive_split);
  write_pools(out, "allocated_bytes", stats.allocated_bytes);
  write_pools(out, "reserved_bytes", stats.reserved_bytes);
  write_pools(out, "active_bytes", stats.active_bytes);
  write_pools(out, "inactive_split_bytes", stats.inactive_split_bytes);
  write_pools(out, "requested_bytes", stats.requested_bytes);
  write_stat(out, "oversize_allocations", stats.oversize_allocations);
  write_stat(out, "oversize_segments", stats.oversize_segments);
  out << "num_alloc_retries " << stats.num_alloc_retries << "\nnum_ooms " << stats.num_ooms;
  out << "\nnum_sync_all_streams " << stats.num_sync_all_streams;
  out << "\nnum_device_alloc " << stats.num_device_alloc << "\nnum_device_free " << stats.num_device_free << '\n';
  text = out.str();
  return text.c_str();
}

// A line "segment address size stream small expandable", then one "block offset size requested state" per block.
const char* allocator_snapshot(CachingAllocator* allocator) {
  std::ostringstream out;
  for (const zerokit::SegmentInfo& segment : allocator->snapshot()) {
    out << "segment " << segment.address << ' ' << segment.size << ' ' << segment.stream << ' '
        << segment.is_small_pool << ' ' << segment.is_expandable << '\n';
    for (const zerokit::BlockInfo& block : segment.blocks) {
      out << "block " << block.offset << ' ' << block.size << ' ' << block.requested_size << ' '
          << static_cast<int>(block.state) << '\n';
    }
  }
  text = out.str();
  return text.c_str();
}

// Pairs of allocate and release per second, with `live` allocations of mixed sizes held all the time.
double allocator_pairs_per_second(CachingAllocator* allocator, int64_t pairs, int64_t live) {
  std::vector<CachingAllocator::Allocation*> held(static_cast<size_t>(live), nullptr);
  uint64_t random = 1;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t pair = 0; pair < pairs; ++pair) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    CachingAllocator::Allocation*& slot = held[(random >> 33) % held.size()];
    if (slot != nullptr) allocator->release(slot);
    slot = allocator->allocate(static_cast<int64_t>((random >> 20) % 64 + 1) << (10 + (random >> 60)), 0);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  for (CachingAllocator::Allocation* allocation : held) {
    if (allocation != nullptr) allocator->release(allocation);
  }
  return static_cast<double>(pairs) / seconds.count();
}

}  // extern "C"
