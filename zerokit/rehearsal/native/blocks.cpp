#include "blocks.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "block_log.h"
#include "host_pages.h"
#include "timing.h"

namespace zerokit {
namespace {

// Addresses for device memory: reserved, never backed by pages unless small or integer contents are written.
constexpr int64_t kArenaBytes = int64_t{1} << 45;

struct Pinned {
  std::mutex mutex;
  std::map<const char*, int64_t> ranges;
  // Freed pinned memory by size: torch keeps it for the next request of that size class, and never gives it back
  // (aten/src/ATen/core/CachingHostAllocator.h).
  std::unordered_map<int64_t, std::vector<Block*>> cache;
};

Pinned& pinned() {
  static auto* instance = new Pinned;  // outlives every tensor
  return *instance;
}

thread_local bool locks_pages = false;

std::unique_ptr<CachingAllocator> models[2];
bool expandable_answers = false;

char* arena() {
  static char* base = [] {
    void* memory = ::mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(memory != MAP_FAILED, "the rehearsal could not reserve addresses for the virtual device");
    return static_cast<char*>(memory);
  }();
  return base;
}

int64_t power_of_two_at_least(int64_t bytes) {
  int64_t size = 1;
  while (size < bytes) size *= 2;
  return size;
}

// Host memory has its block's address in front of it, since oneDNN and others ask for "raw" memory, which is released by
// nothing but its own address. As much room is taken for that as keeps the memory aligned.
constexpr int64_t kRoomOnHeap = 64;
constexpr int64_t kRoomBeforePages = 4096;

Block*& block_before(void* memory) { return *(static_cast<Block**>(memory) - 1); }

char* own_pages(int64_t bytes) {
  void* memory = ::mmap(nullptr, bytes + kRoomBeforePages, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(memory != MAP_FAILED, "the rehearsal could not map ", bytes, " bytes of host memory");
  // One byte that is written in weights without values must not bring 2 MiB with it.
  ::madvise(memory, bytes + kRoomBeforePages, MADV_NOHUGEPAGE);
  return static_cast<char*>(memory) + kRoomBeforePages;
}

char* heap_memory(int64_t bytes) {
  void* memory = nullptr;
  TORCH_CHECK(posix_memalign(&memory, 64, bytes + kRoomOnHeap) == 0, "out of host memory: ", bytes, " bytes");
  return static_cast<char*>(memory) + kRoomOnHeap;
}

// `size` bytes of host memory for a tensor of `bytes`.
Block* host_block(Space space, int64_t bytes, int64_t size, int64_t counted) {
  const bool own = size >= kOwnPagesBytes;
  char* memory = own ? own_pages(size) : heap_memory(size);
  const Contents contents = own ? Contents::untouched : Contents::known;
  auto* block = new Block{-1, memory, bytes, counted, space, contents, own, nullptr, nullptr};
  block_before(memory) = block;
  return block;
}

uint64_t address_of(const Block& block) { return reinterpret_cast<uint64_t>(block.data); }

// ---- device

std::mutex device_mutex;

// Live blocks by address.
std::map<const char*, Block*>& device_blocks() {
  static auto* instance = new std::map<const char*, Block*>;  // outlives every tensor
  return *instance;
}

// A process that is forked while another thread is in here would find the locks taken for good.
void lock_before_fork() {
  device_mutex.lock();
  pinned().mutex.lock();
  lock_log();
}

void unlock_after_fork() {
  unlock_log();
  pinned().mutex.unlock();
  device_mutex.unlock();
}

[[maybe_unused]] const int told_of_forks = ::pthread_atfork(&lock_before_fork, &unlock_after_fork, &unlock_after_fork);

void release_device(void* context) {
  auto* block = static_cast<Block*>(context);
  const uint64_t address = address_of(*block);
  if (block->counted != 0) {
    const bool is_large = block->bytes >= kOwnPagesBytes && !run_state().compute_everything;
    if (is_large && block->contents == Contents::known) hand_back_pages({static_cast<char*>(block->data), block->bytes});
    std::lock_guard<std::mutex> guard(device_mutex);
    device_blocks().erase(static_cast<const char*>(block->data));
    ordinary_model().release(block->ordinary);
    expandable_model().release(block->expandable);
  } else {
    std::free(block->data);
  }
  leave(*block, address);
  delete block;
}

Block* new_device_block(int64_t bytes) {
  auto* block = new Block{-1, nullptr, bytes, 0, Space::device, Contents::made_up, false, nullptr, nullptr};
  if (!is_counting()) {
    block->data = std::calloc(1, bytes);
    block->contents = Contents::known;
    return block;
  }
  {
    std::lock_guard<std::mutex> guard(device_mutex);
    block->ordinary = ordinary_model().allocate(bytes, current_stream());
    block->expandable = expandable_model().allocate(bytes, current_stream());
    block->counted = (expandable_answers ? block->expandable : block->ordinary)->size;
    const uint64_t address = block->ordinary->address;
    static const uint64_t first_address = address;  // the model's addresses only grow
    const auto offset = static_cast<int64_t>(address - first_address);
    TORCH_CHECK(offset + bytes <= kArenaBytes, "the rehearsal has used up the addresses of its virtual device");
    block->data = arena() + offset;
    device_blocks()[static_cast<const char*>(block->data)] = block;
  }
  if (bytes < kSmallBytes) std::memset(block->data, 0, bytes);
  if (run_state().compute_everything) block->contents = Contents::known;
  enter(*block, address_of(*block));
  return block;
}

// ---- host

void release_pageable(void* memory) {
  if (memory == nullptr) return;
  Block* block = block_before(memory);
  leave(*block, address_of(*block));
  uncount_from_nothing(*block);
  if (block->own_pages) {
    ::munmap(static_cast<char*>(memory) - kRoomBeforePages, block->bytes + kRoomBeforePages);
  } else {
    std::free(static_cast<char*>(memory) - kRoomOnHeap);
  }
  delete block;
}

Block* new_pageable_block(int64_t bytes) {
  if (bytes >= kOwnPagesBytes) take_allowed_pages(bytes);
  const Space space = locks_pages ? Space::pinned : Space::pageable;
  Block* block = host_block(space, bytes, bytes, is_counting() ? bytes : 0);
  if (block->counted >= kLoggedHostBytes) {
    enter(*block, address_of(*block));
  } else if (block->counted > 0) {
    log_change(*block, block->counted, 0);
  }
  return block;
}

void release_pinned(void* memory) {
  if (memory == nullptr) return;
  Block* block = block_before(memory);
  auto& book = pinned();
  std::lock_guard<std::mutex> guard(book.mutex);
  book.cache[power_of_two_at_least(block->bytes)].push_back(block);
}

// A cached block of the same size class, as if new; nullptr if there is none.
Block* cached_pinned_block(int64_t bytes) {
  auto& book = pinned();
  std::lock_guard<std::mutex> guard(book.mutex);
  auto& cached = book.cache[power_of_two_at_least(bytes)];
  if (cached.empty()) return nullptr;
  Block* block = cached.back();
  cached.pop_back();
  if (block->own_pages) {
    ::madvise(block->data, power_of_two_at_least(bytes), MADV_DONTNEED);
    block->contents = Contents::untouched;
  } else {
    block->contents = Contents::known;
  }
  block->never_filled = false;
  block->bytes = bytes;
  return block;
}

Block* new_pinned_block(int64_t bytes) {
  if (Block* cached = cached_pinned_block(bytes)) return cached;
  const int64_t size = power_of_two_at_least(bytes);
  Block* block = host_block(Space::pinned, bytes, size, size);
  enter(*block, address_of(*block));
  auto& book = pinned();
  std::lock_guard<std::mutex> guard(book.mutex);
  book.ranges[static_cast<const char*>(block->data)] = size;
  return block;
}

// ---- the allocators

class BlockAllocator final : public c10::Allocator {
 public:
  using Make = Block* (*)(int64_t);
  BlockAllocator(Make make, c10::DeleterFnPtr release, c10::DeviceType type)
      : make_(make), release_(release), type_(type) {}

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device = type_ == c10::kCUDA ? own_device() : c10::Device(type_);
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, device};
    Block* block = make_(static_cast<int64_t>(bytes));
    return {block->data, type_ == c10::kCUDA ? static_cast<void*>(block) : block->data, release_, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return type_ == c10::kCUDA ? nullptr : release_; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    if (type_ != c10::kCUDA || static_cast<int64_t>(bytes) < kSmallBytes || run_state().compute_everything) {
      default_copy_data(target, source, bytes);
    }
  }

 private:
  Make make_;
  c10::DeleterFnPtr release_;
  c10::DeviceType type_;
};

Block* block_of(const c10::DataPtr& pointer) {
  const auto release = pointer.get_deleter();
  if (release == &release_device) return static_cast<Block*>(pointer.get_context());
  if (release == &release_pageable || release == &release_pinned) return block_before(pointer.get_context());
  return nullptr;
}

BlockAllocator device_memory(&new_device_block, &release_device, c10::kCUDA);
BlockAllocator pageable_memory(&new_pageable_block, &release_pageable, c10::kCPU);
BlockAllocator pinned_memory(&new_pinned_block, &release_pinned, c10::kCPU);

}  // namespace

c10::Allocator* device_allocator() { return &device_memory; }
c10::Allocator* pageable_allocator() { return &pageable_memory; }
c10::Allocator* pinned_allocator() { return &pinned_memory; }

Block* block_of(const c10::StorageImpl& storage) {
  return block_of(storage.data_ptr());
}

Block* device_block_at(const void* address) {
  const char* wanted = static_cast<const char*>(address);
  std::lock_guard<std::mutex> guard(device_mutex);
  auto after = device_blocks().upper_bound(wanted);
  if (after == device_blocks().begin()) return nullptr;
  Block* block = (--after)->second;
  return wanted < after->first + block->bytes ? block : nullptr;
}

bool is_pinned_address(const void* address) {
  auto& book = pinned();
  std::lock_guard<std::mutex> guard(book.mutex);
  const char* wanted = static_cast<const char*>(address);
  auto after = book.ranges.upper_bound(wanted);
  if (after == book.ranges.begin()) return false;
  --after;
  return wanted < after->first + after->second;
}

void resize_storage(c10::StorageImpl& storage, int64_t bytes) {
  const int64_t old_bytes = static_cast<int64_t>(storage.nbytes());
  if (bytes == old_bytes) return;
  c10::Allocator* allocator = storage.device().is_cuda() ? device_allocator() : storage.allocator();
  c10::DataPtr fresh = allocator->allocate(bytes);
  const Block* old_block = block_of(storage);
  Block* block = block_of(fresh);
  const int64_t kept = std::min(bytes, old_bytes);
  if (kept > 0 && (old_block == nullptr || old_block->contents == Contents::known || kept < kSmallBytes)) {
    char* target = static_cast<char*>(fresh.get());
    const char* source = static_cast<const char*>(storage.data());
    if (old_block != nullptr && old_block->own_pages && block->own_pages) {
      copy_resident(target, source, kept);
    } else {
      std::memcpy(target, source, kept);
    }
    if (kept >= kSmallBytes) block->contents = Contents::known;
  } else if (kept > 0 && old_block->contents == Contents::made_up) {
    forget_contents(*block);
  }
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

void record_block_stream(Block& block, int stream) {
  std::lock_guard<std::mutex> guard(device_mutex);
  ordinary_model().record_stream(block.ordinary, stream);
  expandable_model().record_stream(block.expandable, stream);
}

void forget_contents(Block& block) {
  if (run_state().compute_everything || block.contents == Contents::made_up) return;
  if (block.own_pages) {
    ::madvise(block.data, block.bytes, MADV_DONTNEED);
    uncount_from_nothing(block);
  } else if (block.space != Space::device) {
    std::memset(block.data, 0, block.bytes);  // what the heap held before is nobody's value
  }
  block.contents = Contents::made_up;
}

bool is_still_untouched(Block& block) {
  if (block.contents != Contents::untouched) return false;
  if (resident_bytes(block.data, block.bytes, 0) == 0) return true;
  block.contents = Contents::known;
  return false;
}

void set_page_locking(bool on) { locks_pages = on; }

void reset_peak() {
  std::lock_guard<std::mutex> guard(device_mutex);
  ordinary_model().reset_peak();
  expandable_model().reset_peak();
}

void configure_models(AllocatorOptions options) {
  for (const bool expandable : {false, true}) {
    options.expandable_segments = expandable;
    options.clock = allocator_clock(expandable == expandable_answers);
    models[expandable] = std::make_unique<CachingAllocator>(options);
  }
}

std::mutex& models_mutex() { return device_mutex; }
CachingAllocator& ordinary_model() {
  if (!models[0]) configure_models({});
  return *models[0];
}
CachingAllocator& expandable_model() {
  if (!models[1]) configure_models({});
  return *models[1];
}
void answer_from_expandable(bool on) { expandable_answers = on; }
CachingAllocator& answering_model() { return expandable_answers ? expandable_model() : ordinary_model(); }

DeviceScratch::DeviceScratch(int64_t bytes) : memory_(device_allocator()->allocate(bytes)) {}
DeviceScratch::~DeviceScratch() = default;

}  // namespace zerokit
