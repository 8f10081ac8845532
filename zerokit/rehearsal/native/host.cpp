// Host tensors. What a script computes from files is computed for real; what depends on parameters, which hold
// nothing, is sized and left out. A tensor's storage remembers which of the two it is (Contents).

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <unordered_set>
#include <vector>

#include "dispatch.h"
#include "host_pages.h"
#include "operator_facts.h"
#include "timing.h"
#include "torch_versions.h"

namespace zerokit {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

// Random numbers that initialise parameters are drawn and thrown away, so that a shuffle which follows finds the
// host's generator as in a real run; beyond these sizes that would take minutes, and the report says so instead.
constexpr int64_t kDrawnAtOnce = 4 * 1024 * 1024;
constexpr int64_t kDrawnInAll = 64 * 1024 * 1024;
int64_t drawn = 0;
int64_t skipped = 0;

bool is_made_up(const IValue& value) {
  bool found = false;
  for_each_tensor(value, [&](const Tensor& tensor) {
    if (tensor.is_cpu() && !is_known(tensor)) found = true;
  });
  return found;
}

bool any_made_up(const Stack& stack, size_t count) {
  for (auto argument = stack.end() - static_cast<int64_t>(count); argument != stack.end(); ++argument) {
    if (is_made_up(*argument)) return true;
  }
  return false;
}

// The operator on memory that is thrown away, so that the generator moves on.
void draw(const c10::OperatorHandle& op, const Kernel& kernel, c10::DispatchKeySet keys,
          const Stack& stack, size_t count) {
  const IValue& first = *(stack.end() - static_cast<int64_t>(count));
  if (!first.isTensor()) return;
  const int64_t elements = first.toTensor().numel();
  if (elements > kDrawnAtOnce || drawn + elements > kDrawnInAll) {
    skipped += elements;
    return;
  }
  drawn += elements;
  Uncounted uncounted;
  Stack inner(stack.end() - static_cast<int64_t>(count), stack.end());
  // Strides decide in which order elements are drawn.
  inner[0] = at::empty_strided(first.toTensor().sizes(), first.toTensor().strides(), first.toTensor().options());
  kernel.callBoxed(op, keys, &inner);
}

// The block of a host tensor that has pages of its own, else nullptr.
Block* own_pages_of(const Tensor& tensor) {
  Block* block = tensor.is_cpu() && tensor.has_storage() ? block_of(tensor.storage()) : nullptr;
  return block != nullptr && block->own_pages && tensor.numel() > 0 ? block : nullptr;
}

// Counts what an operator has filled from nothing, and hands back pages that it has only read. `untouched`: blocks of its
// arguments that were untouched before.
void account(const c10::OperatorHandle& op, const Stack& arguments, const Stack& stack, const Reach& reach,
             const std::vector<Block*>& untouched) {
  const auto& schema = op.schema();
  for (size_t index = 0; index < arguments.size(); ++index) {
    const auto* alias = schema.arguments()[index].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    for_each_tensor(arguments[index], [&](const Tensor& tensor) {
      Block* block = own_pages_of(tensor);
      if (block == nullptr) return;
      const bool was_untouched = std::find(untouched.begin(), untouched.end(), block) != untouched.end();
      if (was_untouched && !written) {
        zero_pages(*block, {static_cast<char*>(block->data), block->bytes});
      } else if (written && !reach.explains(reach.nothing)) {
        count_from_nothing(*block, Extent(tensor).bytes);
      }
    });
  }
  const auto& returns = schema.returns();
  for (size_t index = 0; index < returns.size(); ++index) {
    if (returns[index].alias_info() != nullptr) continue;
    for_each_tensor(stack[stack.size() - returns.size() + index], [&](const Tensor& tensor) {
      Block* block = own_pages_of(tensor);
      if (block == nullptr || reach.explains(block->bytes)) return;
      count_from_nothing(*block, resident_bytes(block->data, block->bytes));
    });
  }
}

// A result that was given its shape, and no memory for it.
void empty_if_without_room(const Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.has_storage()) return;
  const Extent extent(tensor);
  const int64_t end = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize()) + extent.bytes;
  if (extent.bytes > 0 && end > static_cast<int64_t>(tensor.storage().nbytes())) {
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous({0});
  }
}

// Runs the CPU's kernel. False, with the arguments unchanged, if they have no values or it would fill too much memory.
bool compute(const c10::OperatorHandle& op, const Kernel& kernel, c10::DispatchKeySet keys, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  if (any_made_up(*stack, count)) return false;
  if (run_state().compute_everything) {
    kernel.callBoxed(op, keys, stack);
    return true;
  }
  const Stack arguments(stack->end() - static_cast<int64_t>(count), stack->end());
  Reach reach;
  std::vector<Block*> untouched;
  for (const IValue& argument : arguments) {
    for_each_tensor(argument, [&](const Tensor& tensor) {
      reach.add(tensor);
      Block* block = own_pages_of(tensor);
      if (block != nullptr && is_still_untouched(*block)) untouched.push_back(block);
    });
  }
  const bool is_sized = facts_of(op).has_rule_for_shape;  // else it can only be computed
  if (is_sized && !reach.allows(reach.nothing)) return false;
  const size_t below = stack->size() - count;
  try {
    PagesAllowed allowed(is_sized ? reach.most() : std::numeric_limits<int64_t>::max());
    kernel.callBoxed(op, keys, stack);
  } catch (const TooManyPages&) {
    stack->resize(below);
    stack->insert(stack->end(), arguments.begin(), arguments.end());
    for (const IValue& argument : arguments) for_each_tensor(argument, &empty_if_without_room);
    return false;
  }
  account(op, arguments, *stack, reach, untouched);
  return true;
}

// Runs the CPU's kernel on values that are made up, so that what comes out is made up as well.
void compute_and_forget(const c10::OperatorHandle& op, const Kernel& kernel, c10::DispatchKeySet keys, Stack* stack) {
  const auto& schema = op.schema();
  const size_t below = stack->size() - schema.arguments().size();
  const Stack arguments(stack->begin() + static_cast<int64_t>(below), stack->end());
  try {
    kernel.callBoxed(op, keys, stack);
  } catch (const c10::Error&) {  // perhaps of values, which are nobody's but the rehearsal's
    stack->resize(below);
    stack->insert(stack->end(), arguments.begin(), arguments.end());
    return run_made_up(op, stack);
  }
  for (size_t index = 0; index < arguments.size(); ++index) {
    const auto* alias = schema.arguments()[index].alias_info();
    if (alias != nullptr && alias->isWrite()) for_each_tensor(arguments[index], leave_without_values);
  }
  for (size_t index = stack->size() - schema.returns().size(); index < stack->size(); ++index) {
    for_each_tensor((*stack)[index], leave_without_values);
  }
}

// Takes the place of one CPU kernel.
class HostKernel final : public c10::OperatorKernel {
 public:
  explicit HostKernel(Kernel kernel) : kernel_(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (compute(op, kernel_, keys, stack)) return;
    PagesAllowed all;  // what is left without values takes no pages
    if (facts_of(op).is_sized_by_kernel) return compute_and_forget(op, kernel_, keys, stack);
    if (op.hasTag(at::Tag::nondeterministic_seeded)) draw(op, kernel_, keys, *stack, op.schema().arguments().size());
    run_made_up(op, stack);
  }

 private:
  Kernel kernel_;
};

class HostFill final : public c10::OperatorKernel {
 public:
  explicit HostFill(Kernel kernel) : kernel_(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const size_t count = op.schema().arguments().size();
    const auto arguments = stack->end() - static_cast<int64_t>(count);
    const Tensor tensor = arguments->toTensor();
    const bool writes_zero = count == 1 || ((arguments + 1)->isScalar() && (arguments + 1)->toScalar().equal(0));
    if (!is_needless(tensor, writes_zero)) {
      kernel_.callBoxed(op, keys, stack);
      return;
    }
    torch::jit::drop(*stack, count);
    stack->push_back(tensor);
  }

 private:
  // Whether nothing is left for the kernel to do: zeros take no pages, and what takes too many gets no values.
  static bool is_needless(const Tensor& tensor, bool writes_zero) {
    Block* block = tensor.has_storage() && tensor.numel() > 0 ? block_of(tensor.storage()) : nullptr;
    if (block == nullptr || block->bytes < kSmallBytes || run_state().compute_everything) return false;
    const bool made_up = block->contents == Contents::made_up;
    if (made_up && (block->never_filled || !covers_its_storage(tensor))) return true;
    if (block->own_pages) {
      if (writes_zero && tensor.is_non_overlapping_and_dense()) {
        zero_pages(*block, Extent(tensor));
        return true;
      }
      Reach reach;
      reach.add(tensor);
      if (!reach.allows(reach.nothing)) {
        mark_made_up(tensor);
        return true;
      }
      count_from_nothing(*block, reach.nothing);
    }
    if (made_up) mark_known(tensor);
    return false;
  }
  Kernel kernel_;
};

class HostCopy final : public c10::OperatorKernel {
 public:
  explicit HostCopy(Kernel kernel) : kernel_(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const auto arguments = stack->end() - static_cast<int64_t>(op.schema().arguments().size());
    const Tensor target = arguments->toTensor();
    const Tensor source = (arguments + 1)->toTensor();
    if (!target.is_cpu() || !source.is_cpu() || !is_needless(target, source)) {
      kernel_.callBoxed(op, keys, stack);
      if (target.is_cpu() && target.numel() > 0 && covers_its_storage(target)) mark_known(target);
      return;
    }
    torch::jit::drop(*stack, op.schema().arguments().size());
    stack->push_back(target);
  }

 private:
  static bool is_needless(const Tensor& target, const Tensor& source) {
    if (!is_known(source)) {
      leave_without_values(target);
      return true;
    }
    Block* block = block_of(target.storage());
    if (!is_known(target) && (block == nullptr || block->never_filled || !covers_its_storage(target))) return true;
    if (static_cast<int64_t>(target.storage().nbytes()) < kOwnPagesBytes || target.numel() == 0 ||
        run_state().compute_everything) {
      return false;
    }
    const bool own_pages = block != nullptr && block->own_pages;
    if (own_pages && target.is_non_overlapping_and_dense() && copies_pages(*block, target, source)) return true;
    Reach reach;
    reach.add(source);
    reach.nothing = bytes_without_pages(target);
    if (!reach.allows(reach.nothing)) {
      mark_made_up(target);
      return true;
    }
    if (own_pages && !reach.explains(reach.nothing)) count_from_nothing(*block, reach.nothing);
    return false;
  }
  // What lies in few pages is copied into as few.
  static bool copies_pages(Block& block, const Tensor& target, const Tensor& source) {
    const Block* from = block_of(source.storage());
    if (from == nullptr || !from->own_pages || from == &block) return false;
    const Extent read(source), written(target);
    const int64_t resident = resident_bytes(read.begin, read.bytes);
    const bool alike = target.dtype() == source.dtype() && target.sizes() == source.sizes() &&
                       target.strides() == source.strides() && target.is_conj() == source.is_conj() &&
                       target.is_neg() == source.is_neg();
    if (resident > 0 && (!alike || resident > read.bytes / 2)) return false;
    zero_pages(block, written);
    if (resident > 0) {
      copy_resident(written.begin, read.begin, read.bytes);
      block.contents = Contents::known;
    }
    return true;
  }
  // Of torch's shared memory, too, which is no block of the rehearsal's.
  static int64_t bytes_without_pages(const Tensor& tensor) {
    const Extent extent(tensor);
    const int64_t bytes = std::min(extent.bytes, tensor.numel() * static_cast<int64_t>(tensor.itemsize()));
    return std::max<int64_t>(0, bytes - resident_bytes(extent.begin, extent.bytes));
  }
  Kernel kernel_;
};

// Grows a storage without filling the pages that it had not filled before.
class HostResize final : public c10::OperatorKernel {
 public:
  explicit HostResize(Kernel kernel) : kernel_(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const auto arguments = stack->end() - static_cast<int64_t>(op.schema().arguments().size());
    const Tensor tensor = arguments->toTensor();
    if (tensor.has_storage() && (arguments + 1)->isIntList() && block_of(tensor.storage()) != nullptr) {
      int64_t elements = 1;
      for (const int64_t size : (arguments + 1)->toIntVector()) elements *= size;
      const int64_t bytes = (tensor.storage_offset() + elements) * static_cast<int64_t>(tensor.itemsize());
      auto* storage = tensor.storage().unsafeGetStorageImpl();
      if (storage->resizable() && bytes > static_cast<int64_t>(storage->nbytes())) resize_storage(*storage, bytes);
    }
    kernel_.callBoxed(op, keys, stack);
  }

 private:
  Kernel kernel_;
};

// Results whose size depends on values, of tensors that have none.
class HostSelection final : public c10::OperatorKernel {
 public:
  HostSelection(Kernel kernel, bool is_nonzero) : kernel_(std::move(kernel)), is_nonzero_(is_nonzero) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (compute(op, kernel_, keys, stack)) return;
    PagesAllowed all;
    const size_t count = op.schema().arguments().size();
    const std::vector<IValue> arguments(stack->end() - static_cast<int64_t>(count), stack->end());
    torch::jit::drop(*stack, count);
    const Tensor tensor = arguments[0].toTensor();
    stack->push_back(is_nonzero_ ? select_nonzero(tensor) : select_masked(tensor, arguments[1].toTensor()));
  }

 private:
  Kernel kernel_;
  bool is_nonzero_;
};

// Operators that look at sizes and strides only, or must see the tensor itself.
const std::unordered_set<std::string>& left_alone() {
  static const std::unordered_set<std::string> names = {
      "aten::as_strided", "aten::view", "aten::_reshape_alias", "aten::unfold", "aten::empty", "aten::empty_strided",
      "aten::set_", "aten::is_pinned", "aten::view_as_real", "aten::view_as_complex", "aten::is_set_to",
      "aten::_has_compatible_shallow_copy_type", "aten::_conj", "aten::_neg_view", "aten::_local_scalar_dense",
      "aten::equal", "aten::record_stream"};
  return names;
}

bool takes_tensors(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (argument.type()->str().find("Tensor") != std::string::npos) return true;
  }
  return false;
}

// Timed if there is a clock.
template <class Functor>
torch::CppFunction on_host(std::unique_ptr<Functor> functor) {
  if (the_clock() == nullptr) return torch::CppFunction::makeFromBoxedFunctor(std::move(functor));
  return timed(c10::KernelFunction::makeFromBoxedFunctor(std::move(functor)), Worker::host);
}

torch::CppFunction stand_in(const std::string& name, const Kernel& kernel) {
  if (name == "aten::copy_") return on_host(std::make_unique<HostCopy>(kernel));
  if (name == "aten::resize_") return on_host(std::make_unique<HostResize>(kernel));
  if (name == "aten::zero_" || name == "aten::fill_.Scalar") return on_host(std::make_unique<HostFill>(kernel));
  if (name == "aten::nonzero" || name == "aten::masked_select") {
    return on_host(std::make_unique<HostSelection>(kernel, name == "aten::nonzero"));
  }
  return on_host(std::make_unique<HostKernel>(kernel));
}

}  // namespace

int64_t random_elements_skipped() { return skipped; }

void take_over_host() {
  Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard quietly(&quiet);
  c10::SetCPUAllocator(pageable_allocator(), /*priority=*/100);
  static torch::Library* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__,
                                                      __LINE__);
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!starts_with(name.name, "aten::") || left_alone().count(name.name) != 0) continue;
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || !takes_tensors(op->schema())) continue;
    const bool is_copy = name.name == "aten::copy_";
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && !is_copy) continue;
    const Kernel kernel = computed_kernel(*op, c10::DispatchKey::CPU);
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library->impl(full.c_str(), stand_in(full, kernel));
  }
}

}  // namespace zerokit
