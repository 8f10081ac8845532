#include "block_log.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "timing.h"

namespace zerokit {
namespace {

struct Ledger {
  std::mutex mutex;
  std::vector<Event> events;
  std::vector<BlockRecord> records;
};

Ledger& ledger() {
  static auto* instance = new Ledger;  // outlives every tensor
  return *instance;
}

int64_t now_ns() {
  if (Clock* clock = the_clock()) return clock->now();
  static const auto start = std::chrono::steady_clock::now();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
}

// Caller holds the lock.
void append(Ledger& book, const Block& block, int64_t bytes, uint64_t address) {
  if (block.space != Space::device && std::abs(bytes) < kLoggedHostBytes) return;
  book.events.push_back({now_ns(), block.id, bytes, address, run_state().step, static_cast<int16_t>(current_stream()),
                         static_cast<uint8_t>(block.space), run_state().phase});
}

template <class Entry>
int64_t count_of(const std::vector<Entry>& entries) {
  std::lock_guard<std::mutex> guard(ledger().mutex);
  return static_cast<int64_t>(entries.size());
}

template <class Entry>
void copy_from(const std::vector<Entry>& entries, Entry* target, int64_t count) {
  std::lock_guard<std::mutex> guard(ledger().mutex);
  std::copy_n(entries.begin(), std::min<int64_t>(count, static_cast<int64_t>(entries.size())), target);
}

}  // namespace

void enter(Block& block, uint64_t address) {
  const bool traced = block.counted >= kTracedBytes && run_state().find_site != nullptr;
  // Python is asked without the lock: it may wait for the thread that holds Python's own lock.
  const int32_t site = traced ? calling_line() : -1;
  auto& book = ledger();
  std::lock_guard<std::mutex> guard(book.mutex);
  block.id = static_cast<int64_t>(book.records.size());
  book.records.push_back({block.counted, site, running_operator(), -1, 0, -1, 0, run_state().phase, {}});
  append(book, block, block.counted, address);
}

void leave(Block& block, uint64_t address) {
  if (block.counted != 0) log_change(block, -block.counted, address);
}

void log_change(const Block& block, int64_t bytes, uint64_t address) {
  auto& book = ledger();
  std::lock_guard<std::mutex> guard(book.mutex);
  append(book, block, bytes, address);
}

void label(Block& block, uint8_t category, int32_t name) {
  if (block.id < 0) return;
  auto& book = ledger();
  std::lock_guard<std::mutex> guard(book.mutex);
  auto& record = book.records[block.id];
  record.category = category;
  if (name >= 0) record.name = name;
}

void describe(Block& block, int8_t dtype, c10::IntArrayRef shape) {
  if (block.id < 0 || block.counted < kTracedBytes) return;
  auto& book = ledger();
  std::lock_guard<std::mutex> guard(book.mutex);
  auto& record = book.records[block.id];
  record.dtype = dtype;
  record.dimensions = static_cast<uint8_t>(std::min<size_t>(shape.size(), 6));
  std::copy_n(shape.begin(), record.dimensions, record.shape);
}

int64_t event_count() { return count_of(ledger().events); }
void copy_events(Event* target, int64_t count) { copy_from(ledger().events, target, count); }
int64_t block_count() { return count_of(ledger().records); }
void copy_blocks(BlockRecord* target, int64_t count) { copy_from(ledger().records, target, count); }

void lock_log() { ledger().mutex.lock(); }
void unlock_log() { ledger().mutex.unlock(); }

}  // namespace zerokit
