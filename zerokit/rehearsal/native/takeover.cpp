// Takes the CUDA dispatch key over: on a CPU build of torch, where nothing is registered under it, as on a CUDA build,
// where every operator has its kernel.

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "attention.h"
#include "dispatch.h"
#include "kernel_library.h"
#include "operator_facts.h"
#include "timing.h"
#include "torch_versions.h"

namespace zerokit {
namespace {

void on_device(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  TimedOperator timed(op, *stack);
  run_on_device(op, stack);
  timed.submit(*stack);
}

// What no kernel is registered for, on either build.
TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_device>());
}

// Collectives call the process group, which is ours; the others are reached only through aten.
bool keeps_its_kernel(const std::string& name) {
  for (const char* space : {"c10d::", "_c10d_functional::", "symm_mem::", "_native::", "inductor_prims::"}) {
    if (starts_with(name, space)) return true;
  }
  return false;
}

// Operators that have one kernel on CUDA, though they decompose elsewhere: a decomposition has intermediates that a GPU
// never makes. Source: the kernels that torch 2.13 registers on CUDA and not on the CPU.
bool is_one_kernel_on_cuda(const std::string& name, const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string> names = {
      "aten::_chunk_cat", "aten::_chunk_cat.out", "aten::_fused_rms_norm", "aten::_grouped_mm", "aten::addr",
      "aten::addr.out", "aten::all.dims", "aten::all.dims_out", "aten::any.dims", "aten::any.dims_out",
      "aten::convolution_backward", "aten::convolution", "aten::linalg__powsum", "aten::mish_backward",
      "aten::native_group_norm", "aten::native_layer_norm", "aten::silu_backward", "aten::split_with_sizes_copy.out"};
  if (names.count(name) != 0) return true;
  return starts_with(name, "aten::_foreach_") && !name.ends_with("out") && !starts_with(name, "aten::_foreach_copy") &&
         !starts_with(name, "aten::_foreach_zero") &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

// A backend that nobody writes kernels for: what it computes is what CUDA would without kernels of its own.
constexpr auto kUnusedBackend = c10::DispatchKey::MAIA;

// Structured operators have a composite kernel that runs the C++ shape function, allocates, and calls the out= variant.
// Where there is also a decomposition, as of silu_backward, the unused backend would get that.
bool is_structured(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(kUnusedBackend);
}

class KnownKernel final : public c10::OperatorKernel {
 public:
  KnownKernel(Kernel kernel, const std::string& name)
      : kernel_(std::move(kernel)), name_(operator_index(name)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    RunningOperator running(name_);
    TimedOperator timed(op, *stack);
    kernel_.callBoxed(op, keys, stack);
    timed.submit(*stack);
  }

 private:
  Kernel kernel_;
  int32_t name_;
};

// torch wants a library object for each namespace.
torch::Library& library_of(const std::string& name) {
  static auto* libraries = new std::unordered_map<std::string, std::unique_ptr<torch::Library>>;
  const auto space = name.substr(0, name.find("::"));
  auto& library = (*libraries)[space];
  if (!library) {
    library = std::make_unique<torch::Library>(torch::Library::IMPL, space, c10::DispatchKey::CUDA, __FILE__, __LINE__);
  }
  return *library;
}

}  // namespace

void take_over_device() {
  Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard quietly(&quiet);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& operator_name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(operator_name);
    if (!op || !op->hasSchema()) continue;
    const auto& overload = operator_name.overload_name;
    const std::string name = overload.empty() ? operator_name.name : operator_name.name + "." + overload;
    const bool has_kernel = op->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
    if (keeps_its_kernel(name) || !(has_kernel || is_one_kernel_on_cuda(name, *op))) continue;
    if (!is_structured(*op)) {
      library_of(name).impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&on_device>());
    } else if (has_kernel) {
      auto kernel = std::make_unique<KnownKernel>(computed_kernel(*op, kUnusedBackend), name);
      library_of(name).impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
    }
  }
  // The latest registration counts.
  KernelLibrary aten(library_of("aten::empty"));
  register_kernels(aten);
  register_value_kernels(aten);
  register_fast_kernels(aten);
  register_attention(aten);
  use_attention_choice();
}

}  // namespace zerokit
