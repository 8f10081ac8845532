// What tensors hold: what is computed, what is made up, and what the report says of it.

#include <map>
#include <mutex>
#include <tuple>

#include "dispatch.h"

namespace zerokit {

// ---- contents

bool is_known(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return false;
  if (static_cast<int64_t>(tensor.storage().nbytes()) < kSmallBytes || run_state().compute_everything) return true;
  const Block* block = block_of(tensor.storage());
  return block == nullptr || block->contents != Contents::made_up;
}

bool is_computable(const at::Tensor& tensor) {
  if (run_state().compute_everything) return tensor.has_storage();
  if (!is_known(tensor)) return false;
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  return bytes < kSmallBytes || bytes <= most_computed(tensor.scalar_type());
}

int64_t most_computed(at::ScalarType type) {
  if (!at::isIntegralType(type, /*includeBool=*/true)) return kSmallBytes - 1;
  return type == at::kByte || type == at::kChar ? kComputedOctets : kComputedBytes;
}

bool covers_its_storage(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.itemsize()) == static_cast<int64_t>(tensor.storage().nbytes());
}

void mark_known(const at::Tensor& tensor) {
  Block* block = block_of(tensor.storage());
  if (block != nullptr && block->contents == Contents::made_up) block->contents = Contents::known;
}

void mark_made_up(const at::Tensor& tensor) {
  if (static_cast<int64_t>(tensor.storage().nbytes()) < kSmallBytes) return;
  Block* block = block_of(tensor.storage());
  if (block == nullptr) return;
  // A made-up slice of host memory takes nothing from the data around it.
  const bool is_slice = tensor.is_cpu() && !covers_its_storage(tensor);
  if (is_slice && block->contents != Contents::made_up && !is_still_untouched(*block)) return;
  forget_contents(*block);
}

void fill_made_up(const at::Tensor& tensor, bool flag) {
  if (tensor.numel() == 0 || static_cast<int64_t>(tensor.storage().nbytes()) >= kSmallBytes) return;
  Uncounted uncounted;
  c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset);
  auto view = tensor.is_cuda() ? host_view(tensor) : tensor;
  const bool is_one = tensor.scalar_type() == at::kBool ? flag : tensor.is_floating_point() || tensor.is_complex();
  view.fill_(is_one ? 1 : 0);
}

namespace {
std::mutex notes_mutex;
std::map<std::tuple<Note, std::string, int32_t>, int64_t> notes;
}  // namespace

void note(Note kind, const std::string& what) {
  const int32_t site = calling_line();
  std::lock_guard<std::mutex> guard(notes_mutex);
  ++notes[{kind, what, site}];
}

std::string all_notes() {
  std::lock_guard<std::mutex> guard(notes_mutex);
  std::string lines;
  for (const auto& [key, count] : notes) {
    const auto& [kind, what, site] = key;
    lines += std::to_string(static_cast<int>(kind)) + "\t" + what + "\t" + std::to_string(site) + "\t" +
             std::to_string(count) + "\n";
  }
  return lines;
}

void check_device(const c10::Device& device) {
  if (!device.is_cuda() || !device.has_index() || device == own_device()) return;
  TORCH_CHECK(device.index() < visible_devices(), "CUDA error: invalid device ordinal (", device, " of ",
              static_cast<int>(visible_devices()), " devices, counted from 0)");
  note(Note::other_device, device.str());
}

}  // namespace zerokit
