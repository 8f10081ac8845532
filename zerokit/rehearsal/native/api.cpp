// What Python sees of the library, through ctypes (backend.py).

#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "dispatch.h"
#include "timing.h"

using namespace zerokit;

namespace {

c10::StorageImpl* storage_at(void* address) { return static_cast<c10::StorageImpl*>(address); }

at::Tensor tensor_at(void* address) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(static_cast<c10::TensorImpl*>(address)));
}

std::string notes;
std::string refusal;
std::string joined_operators;

template <class Call>
void with_both_models(Call call) {
  std::lock_guard<std::mutex> guard(models_mutex());
  call(ordinary_model());
  call(expandable_model());
}

// `which`: index in backend.STATS times 12, plus the pool times 4, plus the field.
int64_t stat_of(const AllocatorStats& stats, int which) {
  constexpr int kFields = 4;
  constexpr int kPerStat = kFields * AllocatorStats::kPoolCount;
  const auto& stat = (stats.*AllocatorStats::kAllStats[which / kPerStat])[which % kPerStat / kFields];
  const int64_t fields[kFields] = {stat.current, stat.peak, stat.allocated, stat.freed};
  return fields[which % kFields];
}

}  // namespace

extern "C" {

// ---- setting up
void zk_set_multiprocessors(int count) { set_device_multiprocessors(count); }

void zk_configure_device(int major, int minor, int compute_everything) {
  set_device_capability({major, minor});
  run_state().compute_everything = compute_everything != 0;
}
void zk_configure_allocator(int expandable, int64_t max_split_size, int64_t large_segment_size,
                            int64_t max_non_split_rounding_size, int64_t roundup_power2_divisions) {
  AllocatorOptions options;
  options.max_split_size = max_split_size;
  options.large_segment_size = large_segment_size;
  options.max_non_split_rounding_size = max_non_split_rounding_size;
  options.roundup_power2_divisions = roundup_power2_divisions;
  answer_from_expandable(expandable != 0);
  configure_models(options);
}
void zk_set_devices(int own, int visible) {
  set_devices(static_cast<c10::DeviceIndex>(own), static_cast<c10::DeviceIndex>(visible));
}
// Empty if all went well; else why this torch is not one that the library fits.
const char* zk_take_over() {
  try {
    take_over_device();
    take_over_host();
  } catch (const std::exception& error) {
    refusal = error.what();
    refusal.resize(std::min(refusal.find('\n', 1), refusal.size()));
  }
  return refusal.c_str();
}
void zk_set_site_finder(int32_t (*find_site)()) { run_state().find_site = find_site; }

// ---- during the run
void zk_set_phase(int phase) { run_state().phase = static_cast<uint8_t>(phase); }
int zk_phase() { return run_state().phase; }
void zk_set_step(int step) { run_state().step = step; }
void zk_set_counting(int on) { set_timing_and_counting(on != 0); }
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
// What code that is not run would have written into a tensor.
void zk_make_up(void* tensor) {
  const auto written = tensor_at(tensor);
  if (!written.has_storage() || run_state().compute_everything) return;
  leave_without_values(written);
}
// The bytes of the block in which `address` lies, and where it begins; 0 for memory that is not the device's.
int64_t zk_block_at(void* address, void** begin) {
  const Block* block = device_block_at(address);
  if (block == nullptr) return 0;
  *begin = block->data;
  return block->bytes;
}
// As zk_make_up, for a block without a tensor; one below kSmallBytes keeps what it holds.
void zk_make_up_at(void* address) {
  Block* block = device_block_at(address);
  if (block == nullptr || run_state().compute_everything) return;
  if (block->bytes >= kSmallBytes) forget_contents(*block);
}
int zk_is_made_up(void* storage) {
  const Block* block = block_of(*storage_at(storage));
  return block != nullptr && block->contents == Contents::made_up;
}
void zk_label(void* storage, int category, int name) {
  if (Block* block = block_of(*storage_at(storage))) label(*block, static_cast<uint8_t>(category), name);
}
void zk_resize_storage(void* storage, int64_t bytes) { resize_storage(*storage_at(storage), bytes); }

// ---- memory
void zk_reset_peak() { reset_peak(); }
void zk_synchronize() {
  if (Clock* clock = the_clock()) clock->synchronize_all(waiting_now());
  with_both_models([](CachingAllocator& model) { model.synchronize(); });
}
void zk_empty_cache() {
  with_both_models([](CachingAllocator& model) { model.empty_cache(); });
}
// Of a CUDA graph, while it is captured.
void zk_begin_pool(int64_t id) {
  with_both_models([id](CachingAllocator& model) { model.begin_pool(id); });
}
void zk_end_pool() {
  with_both_models([](CachingAllocator& model) { model.end_pool(); });
}
void zk_release_pool(int64_t id) {
  with_both_models([id](CachingAllocator& model) { model.release_pool(id); });
}
// model: 0 ordinary, 1 expandable segments, 2 the one that torch.cuda answers from. which: see stat_of.
int64_t zk_stat(int model, int which) {
  std::lock_guard<std::mutex> guard(models_mutex());
  CachingAllocator& allocator = model == 0 ? ordinary_model() : model == 1 ? expandable_model() : answering_model();
  return stat_of(allocator.stats(), which);
}
int64_t zk_awaited_blocks() {
  std::lock_guard<std::mutex> guard(models_mutex());
  return answering_model().awaited_blocks();
}

// ---- the recording
int64_t zk_event_count() { return event_count(); }
void zk_copy_events(void* target, int64_t count) { copy_events(static_cast<Event*>(target), count); }
int64_t zk_block_count() { return block_count(); }
void zk_copy_blocks(void* target, int64_t count) { copy_blocks(static_cast<BlockRecord*>(target), count); }
const char* zk_operator_names() {
  joined_operators.clear();
  for (const auto& name : operator_names()) joined_operators += name + "\n";
  return joined_operators.c_str();
}
const char* zk_notes() {
  notes = all_notes();
  return notes.c_str();
}
// 0 for a device that does not exist.
int zk_use_device(int index) {
  if (index < 0 || index >= visible_devices()) return 0;
  check_device(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)));
  if (Clock* clock = the_clock()) clock->use_driver();
  return 1;
}
int64_t zk_random_elements_skipped() { return random_elements_skipped(); }
double zk_flops() { return flops_so_far(); }
double zk_fp32_flops() { return fp32_flops_so_far(); }
void zk_count_flops(double flops) { count_flops(flops); }
}
