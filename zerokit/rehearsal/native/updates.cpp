#include "updates.h"

#include <atomic>

#include "dispatch.h"

namespace zerokit {
namespace {

std::atomic<void (*)()> told_of_updates{nullptr};
std::atomic<int64_t> watches{0};

}  // namespace

void watch_updates(void (*told)()) {
  ++watches;
  told_of_updates = told;
}

void watch_block(Block& block) { block.watch = watches; }

void tell_of_update(const at::Tensor& written) {
  const auto told = told_of_updates.load();
  if (told == nullptr || !written.has_storage() || !is_counting()) return;
  const Block* block = block_of(written.storage());
  if (block != nullptr && block->watch == watches) told();
}

TellsOfUpdates::~TellsOfUpdates() {
  if (told_of_updates.load() == nullptr) return;
  for (size_t index = 0; index < arguments_.size(); ++index) {
    if (written_[index]) for_each_tensor(arguments_[index], &tell_of_update);
  }
}

}  // namespace zerokit
