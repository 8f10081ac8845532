// C functions around zerokit::CachingAllocator for test_caching_allocator.py. Statistics and snapshots are text.
#include <sstream>
#include <string>

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

// Segments as in torch.cuda.memory_snapshot: unmapped ranges are left out and divide an expandable segment.
namespace zerokit {

class AllocatorInspector {
 public:
  // A line "segment address stream small expandable", then one "block size requested state" for each block.
  static void write(std::ostream& out, const CachingAllocator& allocator) {
    for (const auto& [address, segment] : allocator.segments_) {
      for (const auto* block = segment.first; block != nullptr; block = block->next) {
        if (!block->mapped) continue;
        if (block->previous == nullptr || !block->previous->mapped) {
          out << "segment " << block->address << ' ' << segment.stream << ' ' << segment.pool->is_small << ' '
              << segment.expandable() << '\n';
        }
        const int state = block->allocated ? 1 : block->is_idle() ? 0 : 2;
        out << "block " << block->size << ' ' << block->requested_size << ' ' << state << '\n';
      }
    }
  }
};

}  // namespace zerokit

extern "C" {

CachingAllocator* allocator_new(int expandable_segments, int64_t max_split_size, int64_t roundup_power2_divisions,
                                int64_t total_memory, int64_t event_lag, int64_t large_segment_size,
                                int64_t max_non_split_rounding_size) {
  AllocatorOptions options;
  options.expandable_segments = expandable_segments != 0;
  options.max_split_size = max_split_size;
  options.roundup_power2_divisions = roundup_power2_divisions;
  options.total_memory = total_memory;
  options.event_lag = event_lag;
  options.large_segment_size = large_segment_size;
  options.max_non_split_rounding_size = max_non_split_rounding_size;
  return new CachingAllocator(options);
}

void allocator_delete(CachingAllocator* allocator) { delete allocator; }

CachingAllocator::Allocation* allocator_allocate(CachingAllocator* allocator, int64_t bytes, int stream) {
  return allocator->allocate(bytes, stream);
}

int64_t allocator_allocated_size(CachingAllocator::Allocation* allocation) { return allocation->size; }

uint64_t allocator_address(CachingAllocator::Allocation* allocation) { return allocation->address; }

void allocator_record_stream(CachingAllocator* allocator, CachingAllocator::Allocation* allocation, int stream) {
  allocator->record_stream(allocation, stream);
}

void allocator_release(CachingAllocator* allocator, CachingAllocator::Allocation* allocation) {
  allocator->release(allocation);
}

void allocator_synchronize(CachingAllocator* allocator) { allocator->synchronize(); }

void allocator_empty_cache(CachingAllocator* allocator) { allocator->empty_cache(); }

void allocator_reset_peak(CachingAllocator* allocator) { allocator->reset_peak(); }

const char* allocator_stats(CachingAllocator* allocator) {
  const AllocatorStats& stats = allocator->stats();
  std::ostringstream out;
  int index = 0;
  for (const char* name : {"allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
                           "active_bytes", "inactive_split_bytes", "requested_bytes"}) {
    write_pools(out, name, stats.*AllocatorStats::kAllStats[index++]);
  }
  text = out.str();
  return text.c_str();
}

const char* allocator_snapshot(CachingAllocator* allocator) {
  std::ostringstream out;
  zerokit::AllocatorInspector::write(out, *allocator);
  text = out.str();
  return text.c_str();
}

}  // extern "C"
