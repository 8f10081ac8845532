// What Python sees of the library, through ctypes (library.py).

#include <c10/core/StorageImpl.h>

#include <cstring>
#include <string>
#include <vector>

#include "dispatch.h"

using namespace zerokit;

namespace {

c10::StorageImpl* storage_at(void* address) { return static_cast<c10::StorageImpl*>(address); }

std::string joined_notes;
std::string joined_operators;

// `which`: index in library.STATS times 12, plus the pool times 4, plus the field.
int64_t stat_of(const AllocatorStats& stats, int which) {
  const AllocatorStats::ByPool* const table[] = {&stats.allocation,      &stats.segment,        &stats.active,
                                                 &stats.inactive_split,  &stats.allocated_bytes, &stats.reserved_bytes,
                                                 &stats.active_bytes,    &stats.inactive_split_bytes,
                                                 &stats.requested_bytes};
  constexpr int kFields = 4;
  constexpr int kPerStat = kFields * AllocatorStats::kPoolCount;
  constexpr int kStats = sizeof(table) / sizeof(table[0]);
  if (which < kStats * kPerStat) {
    const auto& stat = (*table[which / kPerStat])[which % kPerStat / kFields];
    const int64_t fields[kFields] = {stat.current, stat.peak, stat.allocated, stat.freed};
    return fields[which % kFields];
  }
  return which == kStats * kPerStat ? stats.num_alloc_retries : stats.num_ooms;
}

}  // namespace

extern "C" {

// ---- setting up
void zk_set_multiprocessors(int count) { set_device_multiprocessors(count); }

void zk_configure(int64_t capacity, int expandable, int major, int minor, int compute_everything) {
  configure_models(capacity, AllocatorOptions{});
  answer_from_expandable(expandable != 0);
  set_device_capability({major, minor});
  run_state().compute_everything = compute_everything != 0;
}
void zk_set_devices(int own, int visible) {
  set_devices(static_cast<c10::DeviceIndex>(own), static_cast<c10::DeviceIndex>(visible));
}
int zk_take_over_host() { return take_over_host(); }
int zk_take_over_device() { return take_over_device(); }
void zk_set_site_finder(int32_t (*find_site)()) { run_state().find_site = find_site; }

// ---- during the run
void zk_set_phase(int phase) { run_state().phase = static_cast<uint8_t>(phase); }
int zk_phase() { return run_state().phase; }
void zk_set_step(int step) { run_state().step = step; }
void zk_set_counting(int on) { set_counting(on != 0); }
void zk_set_page_locking(int on) { set_page_locking(on != 0); }
int zk_current_stream() { return current_stream(); }
void zk_set_current_stream(int stream) { set_current_stream(stream); }
// For parameters and weights. What somebody has computed already stays.
void zk_never_fill(void* storage) {
  Block* block = block_of(*storage_at(storage));
  if (block == nullptr || run_state().compute_everything || !is_still_untouched(*block)) return;
  forget_contents(*block);
  block->never_filled = true;
}
int zk_is_made_up(void* storage) {
  const Block* block = block_of(*storage_at(storage));
  return block != nullptr && block->contents == Contents::made_up;
}
void zk_label(void* storage, int category, int name) {
  if (Block* block = block_of(*storage_at(storage))) label(*block, static_cast<uint8_t>(category), name);
}
int64_t zk_block(void* storage) {
  const Block* block = block_of(*storage_at(storage));
  return block == nullptr ? -1 : block->id;
}
void zk_resize_storage(void* storage, int64_t bytes) { resize_storage(*storage_at(storage), bytes); }

// ---- memory
int64_t zk_current(int space) { return totals(static_cast<Space>(space)).current; }
int64_t zk_peak(int space) { return totals(static_cast<Space>(space)).peak; }
void zk_reset_peak(int space) { reset_peak(static_cast<Space>(space)); }
void zk_synchronize() {
  ordinary_model().synchronize();
  expandable_model().synchronize();
}
void zk_empty_cache() {
  ordinary_model().empty_cache();
  expandable_model().empty_cache();
}
// model: 0 ordinary, 1 expandable segments, 2 the one that torch.cuda answers from. which: library.STATS.
int64_t zk_stat(int model, int which) {
  CachingAllocator& allocator = model == 0 ? ordinary_model() : model == 1 ? expandable_model() : answering_model();
  return stat_of(allocator.stats(), which);
}

// ---- the recording
int64_t zk_event_count() { return static_cast<int64_t>(events().size()); }
const void* zk_events() { return events().data(); }
int64_t zk_block_count() { return static_cast<int64_t>(block_records().size()); }
const void* zk_blocks() { return block_records().data(); }
const char* zk_operator_names() {
  joined_operators.clear();
  for (const auto& name : operator_names()) joined_operators += name + "\n";
  return joined_operators.c_str();
}
// Lines of "what<tab>site<tab>count".
const char* zk_made_up_notes() {
  joined_notes.clear();
  for (const auto& [key, count] : made_up_notes()) {
    joined_notes += key.first + "\t" + std::to_string(key.second) + "\t" + std::to_string(count) + "\n";
  }
  return joined_notes.c_str();
}
int64_t zk_random_elements_skipped() { return random_elements_skipped(); }
double zk_flops() { return flops_so_far(); }
}
