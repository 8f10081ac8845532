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
  if (told_of_updates.load() != nullptr && written.has_storage()) tell_of_update(block_of(written.storage()));
}

void tell_of_update(const Block* written) {
  const auto told = told_of_updates.load();
  if (told != nullptr && is_counting() && written != nullptr && written->watch == watches) told();
}

TellsOfUpdates::~TellsOfUpdates() {
  if (told_of_updates.load() == nullptr) return;
  for (size_t index = 0; index < arguments_.size(); ++index) {
    if (written_[index]) {
      for_each_tensor(arguments_[index], [](const at::Tensor& tensor) { tell_of_update(tensor); });
    }
  }
}

}  // namespace zerokit
