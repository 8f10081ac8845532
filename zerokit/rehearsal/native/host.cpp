// Host tensors. What a script computes from files is computed for real; what depends on parameters, which hold
// nothing, is sized and left out. A tensor's storage remembers which of the two it is (Contents).

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "dispatch.h"
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
// Made-up host memory up to this size is filled if a script fills it with a number.
constexpr int64_t kFilledBytes = 64 * 1024 * 1024;
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

// Takes the place of one CPU kernel.
class HostKernel final : public c10::OperatorKernel {
 public:
  explicit HostKernel(Kernel kernel) : kernel_(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const size_t count = op.schema().arguments().size();
    if (!any_made_up(*stack, count)) {
      kernel_.callBoxed(op, keys, stack);
      return;
    }
    if (op.hasTag(at::Tag::nondeterministic_seeded)) draw(op, kernel_, keys, *stack, count);
    run_made_up(op, stack);
  }

 private:
  Kernel kernel_;
};

// Zeros written over untouched zeros change nothing, and would make every page resident.
class HostZero final : public c10::OperatorKernel {
 public:
  explicit HostZero(Kernel kernel) : kernel_(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const size_t count = op.schema().arguments().size();
    const auto arguments = stack->end() - static_cast<int64_t>(count);
    const Tensor& tensor = arguments->toTensor();
    Block* block = tensor.has_storage() ? block_of(tensor.storage()) : nullptr;
    const bool writes_zero = count == 1 || ((arguments + 1)->isScalar() && (arguments + 1)->toScalar().equal(0));
    const bool large = block != nullptr && block->bytes >= kSmallBytes && !run_state().compute_everything;
    const bool made_up = large && block->contents == Contents::made_up;
    if (!(large && writes_zero && is_still_untouched(*block)) && !(made_up && !becomes_known(tensor, *block, writes_zero))) {
      kernel_.callBoxed(op, keys, stack);
      if (made_up) mark_known(tensor);
      return;
    }
    const IValue result = *arguments;
    torch::jit::drop(*stack, count);
    stack->push_back(result);
  }

 private:
  // Whether a fill gives a made-up block values that are worth their pages. Zeros cost none: the pages of a made-up
  // block have been given back.
  static bool becomes_known(const Tensor& tensor, Block& block, bool writes_zero) {
    if (block.never_filled || !covers_its_storage(tensor)) return false;
    if (!writes_zero || !block.own_pages) return block.bytes <= kFilledBytes;
    block.contents = Contents::untouched;
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
    if (!target.is_cpu() || !source.is_cpu() || !needless(target, source)) {
      kernel_.callBoxed(op, keys, stack);
      if (target.is_cpu() && target.numel() > 0 && covers_its_storage(target)) mark_known(target);
      return;
    }
    torch::jit::drop(*stack, op.schema().arguments().size());
    stack->push_back(target);
  }

 private:
  static bool needless(const Tensor& target, const Tensor& source) {
    if (!is_known(source)) {
      fill_made_up(target);
      mark_made_up(target);
      return true;
    }
    if (!is_known(target)) {
      const Block* block = block_of(target.storage());
      return block == nullptr || block->never_filled || !covers_its_storage(target);
    }
    if (static_cast<int64_t>(target.storage().nbytes()) < kOwnPagesBytes || run_state().compute_everything) return false;
    Block* from = block_of(source.storage());
    Block* to = block_of(target.storage());
    return from != nullptr && to != nullptr && is_still_untouched(*from) && is_still_untouched(*to);
  }
  Kernel kernel_;
};

// Results whose size depends on values, of tensors that have none.
class HostSelection final : public c10::OperatorKernel {
 public:
  HostSelection(Kernel kernel, bool is_nonzero) : kernel_(std::move(kernel)), is_nonzero_(is_nonzero) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const size_t count = op.schema().arguments().size();
    if (!any_made_up(*stack, count)) {
      kernel_.callBoxed(op, keys, stack);
      return;
    }
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
      "aten::set_", "aten::resize_", "aten::is_pinned", "aten::view_as_real", "aten::view_as_complex", "aten::is_set_to",
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

}  // namespace

int64_t random_elements_skipped() { return skipped; }

// Puts the pageable allocator and the kernels above in the place of torch's own. Returns the number of kernels.
int take_over_host() {
  Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard quietly(&quiet);
  c10::SetCPUAllocator(pageable_allocator(), /*priority=*/100);
  static torch::Library* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__,
                                                      __LINE__);
  int count = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0 || left_alone().count(name.name) != 0) continue;
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || !takes_tensors(op->schema())) continue;
    const bool is_copy = name.name == "aten::copy_";
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && !is_copy) continue;
    const Kernel kernel = computed_kernel(*op, c10::DispatchKey::CPU);
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    const bool is_selection = full == "aten::nonzero" || full == "aten::masked_select";
    const bool is_zero = full == "aten::zero_" || full == "aten::fill_.Scalar";
    torch::CppFunction function = is_copy   ? torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostCopy>(kernel))
                                  : is_selection ? torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostSelection>(kernel, full == "aten::nonzero"))
                                  : is_zero ? torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostZero>(kernel))
                                            : torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostKernel>(kernel));
    library->impl(full.c_str(), std::move(function));
    ++count;
  }
  return count;
}

}  // namespace zerokit
