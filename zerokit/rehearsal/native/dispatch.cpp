#include "dispatch.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>

#include "operator_facts.h"

namespace zerokit {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

// ---- tensors among arguments

template <class Map>
IValue map_tensors(const IValue& value, Map map) {
  if (value.isTensor()) return map(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> mapped;
    for (const Tensor& tensor : value.toTensorVector()) mapped.push_back(map(tensor));
    return mapped;
  }
  if (value.isList()) {
    const auto list = value.toList();
    const auto element = list.elementType();
    if (element->kind() == c10::TypeKind::OptionalType &&
        element->containedType(0)->kind() == c10::TypeKind::TensorType) {
      c10::List<std::optional<Tensor>> mapped;
      for (const IValue& item : value.toListRef()) {
        mapped.push_back(item.isNone() ? std::nullopt : std::optional<Tensor>(map(item.toTensor())));
      }
      return mapped;
    }
  }
  return value;
}

// ---- results

// A tensor of the virtual device that holds what `computed`, a host tensor, holds.
Tensor to_device(const Tensor& computed) {
  auto result = device_empty_strided(computed.sizes(), computed.strides(), computed.scalar_type());
  if (computed.numel() > 0) {
    const char* source = static_cast<const char*>(computed.storage().data()) +
                         computed.storage_offset() * static_cast<int64_t>(computed.itemsize());
    const int64_t available = static_cast<int64_t>(computed.storage().nbytes()) -
                              computed.storage_offset() * static_cast<int64_t>(computed.itemsize());
    std::memcpy(const_cast<void*>(result.storage().data()), source,
                std::min(available, static_cast<int64_t>(result.storage().nbytes())));
    mark_known(result);
  }
  return result;
}

// Makes `tensor` the shape of `wanted`, in a larger storage if need be.
void take_shape(const Tensor& tensor, const Tensor& wanted) {
  if (tensor.sizes() == wanted.sizes()) return;
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(wanted.sizes(), wanted.strides());
  const auto bytes = static_cast<int64_t>(at::detail::computeStorageNbytes(
      wanted.sizes(), wanted.strides(), tensor.itemsize(), tensor.storage_offset()));
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (static_cast<int64_t>(storage->nbytes()) < bytes) resize_storage(*storage, bytes);
}

bool involves_device(const std::vector<IValue>& arguments, bool* host_tensor_too) {
  bool device_tensor = false, device_asked = false, device_is_ours = false;
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const Tensor& tensor) {
      if (tensor.is_cuda()) {
        device_tensor = true;
      } else if (tensor.is_cpu() && tensor.dim() > 0) {
        *host_tensor_too = true;
      }
    });
    if (argument.isDevice()) {
      device_asked = true;
      device_is_ours = argument.toDevice().is_cuda();
      check_device(argument.toDevice());
    }
  }
  *host_tensor_too = *host_tensor_too && device_tensor;
  return device_asked ? device_is_ours : device_tensor;
}

std::vector<IValue> arguments_for(const OperatorFacts& facts, const std::vector<IValue>& arguments,
                                  const c10::FunctionSchema& schema, c10::DeviceType device, const IValue& generator,
                                  Tensor (*view)(const Tensor&)) {
  std::vector<IValue> mapped;
  mapped.reserve(arguments.size());
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (arguments[index].isDevice()) {
      mapped.emplace_back(c10::Device(device));
    } else if (static_cast<int>(index) == facts.generator) {
      mapped.emplace_back(generator);
    } else if (schema.arguments()[index].name() == "pin_memory") {
      mapped.emplace_back();
    } else {
      mapped.emplace_back(map_tensors(arguments[index], view));
    }
  }
  return mapped;
}

// Random numbers of the virtual device: a stream of their own, so that the host's stays what it would be.
IValue device_randomness() {
  static auto* generator = new at::Generator(at::make_generator<at::CPUGeneratorImpl>(20240229));
  return *generator;
}

// ---- computing for real

// Whether values on the device would take pages for nothing, as no operator computes with so many.
bool is_too_large(const Tensor& tensor) {
  return tensor.is_cuda() && !run_state().compute_everything &&
         static_cast<int64_t>(tensor.storage().nbytes()) > most_computed(tensor.scalar_type());
}

void compute(const c10::OperatorHandle& op, const OperatorFacts& facts, const std::vector<IValue>& arguments,
             bool on_device, Stack* stack) {
  Stack inner = arguments_for(facts, arguments, op.schema(), c10::kCPU, device_randomness(), &host_view);
  const std::vector<IValue> views = inner;
  {
    // What CPU kernels allocate inside is not what the GPU's would.
    Uncounted uncounted;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &inner);
  }
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (!facts.written[index] || !arguments[index].isTensor() || !arguments[index].toTensor().defined()) continue;
    const auto& tensor = arguments[index].toTensor();
    const auto& view = views[index].toTensor();
    if (tensor.is_cuda() && (tensor.sizes() != view.sizes() || tensor.storage().data() != view.storage().data())) {
      take_shape(tensor, view);
      if (is_too_large(tensor)) {
        mark_made_up(tensor);
        continue;
      }
      if (view.numel() > 0) {
        std::memcpy(const_cast<void*>(tensor.storage().data()), view.storage().data(),
                    std::min(tensor.storage().nbytes(), view.storage().nbytes()));
      }
    }
    if (covers_its_storage(tensor)) mark_known(tensor);
  }
  for (size_t result = 0; result < facts.aliased.size(); ++result) {
    if (facts.aliased[result] >= 0 && !facts.is_view[result]) {
      stack->push_back(arguments[facts.aliased[result]]);
    } else {
      stack->push_back(map_tensors(inner[result], [&](const Tensor& tensor) {
        return tensor.defined() && on_device ? to_device(tensor) : tensor;
      }));
    }
  }
}

// A mask for attention (0 and -inf) made of one of booleans: large, and nothing reads its values.
bool makes_large_floats(const std::vector<IValue>& arguments) {
  const Tensor& chosen = arguments[1].toTensor();
  return chosen.is_floating_point() && arguments[0].toTensor().numel() * chosen.itemsize() >= kSmallBytes;
}

bool can_compute(const OperatorFacts& facts, const std::vector<IValue>& arguments) {
  if (run_state().compute_everything) return true;
  if (!facts.has_cpu_kernel) return false;
  if (facts.draws_without_generator) return false;
  if (facts.is_choice && makes_large_floats(arguments)) return false;
  bool computable = true;
  for (size_t index = 0; index < arguments.size() && computable; ++index) {
    for_each_tensor(arguments[index], [&](const Tensor& tensor) {
      if (!tensor.has_storage()) {
        computable = false;
      } else if (facts.is_out[index] || (facts.overwrites && facts.written[index])) {
        const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
        const bool becomes_known = covers_its_storage(tensor) || is_known(tensor);
        if (bytes >= kSmallBytes && (is_too_large(tensor) || tensor.is_floating_point() || !becomes_known)) {
          computable = false;
        }
      } else if (!is_computable(tensor)) {
        computable = false;
      }
    });
  }
  return computable;
}

// ---- leaving values out

void forget_written(const OperatorFacts& facts, const std::vector<IValue>& arguments) {
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (!facts.written[index]) continue;
    for_each_tensor(arguments[index], [&](const Tensor& tensor) {
      if (facts.is_out[index]) fill_made_up(tensor, facts.small_result_is_true);
      mark_made_up(tensor);
    });
  }
}

bool outputs_are_sized(const OperatorFacts& facts, const std::vector<IValue>& arguments) {
  bool sized = facts.only_writes;
  for (size_t index = 0; index < arguments.size() && sized; ++index) {
    if (!facts.is_out[index]) continue;
    for_each_tensor(arguments[index], [&](const Tensor& tensor) {
      if (tensor.numel() == 0) sized = false;
    });
  }
  return sized;
}

// What the dispatcher of a CUDA build says (aten/src/ATen/core/dispatch/OperatorEntry.cpp, reportError).
[[noreturn]] void report_no_cuda_kernel(const c10::OperatorHandle& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "Could not run '", toString(op.operator_name()),
                              "' with arguments from the 'CUDA' backend. No kernel is registered for it there.");
}

[[noreturn]] void report_gap(const c10::OperatorHandle& op) {
  note(Note::gap, "the operator " + toString(op.operator_name()));
  // The worker looks for these words and adds the calling line.
  TORCH_CHECK_NOT_IMPLEMENTED(false, "zerokit cannot stand in for the operator ", toString(op.operator_name()),
                              ": it has no rule for the shape of its result (no Meta kernel)");
}

void size_results(const c10::OperatorHandle& op, const OperatorFacts& facts, const std::vector<IValue>& arguments,
                  bool on_device, Stack* stack) {
  Stack inner = arguments_for(facts, arguments, op.schema(), c10::kMeta, IValue(), &meta_view);
  const std::vector<IValue> views = inner;
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &inner);
  } catch (const c10::NotImplementedError&) {
    report_gap(op);
  }
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (facts.written[index] && arguments[index].isTensor() && arguments[index].toTensor().defined()) {
      take_shape(arguments[index].toTensor(), views[index].toTensor());
    }
  }
  for (size_t result = 0; result < facts.aliased.size(); ++result) {
    const int source = facts.aliased[result];
    if (source >= 0 && !facts.is_view[result]) {
      stack->push_back(arguments[source]);
      continue;
    }
    const bool is_view = source >= 0 && arguments[source].isTensor();
    stack->push_back(map_tensors(inner[result], [&](const Tensor& shape) -> Tensor {
      if (!shape.defined() || !shape.is_meta()) return shape;
      if (is_view) {
        return at::native::as_strided_tensorimpl(arguments[source].toTensor(), shape.sizes(), shape.strides(),
                                                 shape.storage_offset());
      }
      Tensor made = on_device ? device_empty_strided(shape.sizes(), shape.strides(), shape.scalar_type())
                              : at::detail::empty_strided_generic(
                                    shape.sizes(), shape.strides(), pageable_allocator(),
                                    c10::DispatchKeySet(c10::DispatchKey::CPU), shape.scalar_type());
      fill_made_up(made, facts.small_result_is_true);
      mark_made_up(made);
      return made;
    }));
  }
}

void leave_values_out(const c10::OperatorHandle& op, const OperatorFacts& facts, const std::vector<IValue>& arguments,
                      bool on_device, Stack* stack) {
  if (!outputs_are_sized(facts, arguments)) {
    size_results(op, facts, arguments, on_device, stack);
  } else {
    for (const int source : facts.aliased) stack->push_back(arguments[source]);
  }
  forget_written(facts, arguments);
}

// An operator of the script's or of a package, that no CUDA kernel is registered for. If its package says what the
// result looks like, this installation may lack the kernel that the cluster's has; a kernel for the CPU is no evidence.
void run_foreign(const c10::OperatorHandle& op, const OperatorFacts& facts, const std::vector<IValue>& arguments,
                 Stack* stack) {
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) report_no_cuda_kernel(op);
  try {
    size_results(op, facts, arguments, true, stack);
  } catch (const std::exception&) {
    // torch.library.custom_op registers a Meta kernel that fails where its author has given none.
    if (op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) report_no_cuda_kernel(op);
    throw;
  }
  forget_written(facts, arguments);
  note_made_up("result of " + op.schema().name() + ", sized without a CUDA kernel");
}

// What the CPU's kernel cannot do, which the GPU's may: "not implemented for 'Half'", a check that names the CPU, or
// "expected scalar type Float but found Half". Larger tensors get their sizes without any of these.
bool is_of_the_cpu_kernel(const c10::Error& error, bool on_device) {
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr) return true;
  const auto says = [&](const char* words) { return error.msg().find(words) != std::string::npos; };
  return on_device && (says("CPU") || says("expected scalar type"));
}

void check_devices(const OperatorFacts& facts, const c10::OperatorHandle& op, bool host_tensor_too) {
  TORCH_CHECK(!host_tensor_too || facts.mixes_devices,
              "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (when ",
              "running ", op.schema().name(), ")");
}

}  // namespace

// ---- operators

void run_on_device(const c10::OperatorHandle& op, Stack* stack) {
  const auto& facts = facts_of(op);
  const auto& schema = op.schema();
  RunningOperator running(facts.name_index);
  std::vector<IValue> arguments(stack->end() - static_cast<int64_t>(schema.arguments().size()), stack->end());
  torch::jit::drop(*stack, schema.arguments().size());
  bool host_tensor_too = false;
  const bool on_device = involves_device(arguments, &host_tensor_too);
  check_devices(facts, op, host_tensor_too);
  if (is_matrix_product(facts.name_index, schema.name())) {
    if (!starts_with(schema.name(), "aten::convolution")) use_cublas();
    count_flops(product_flops(schema.name(), arguments), arguments[0].toTensor().scalar_type() == at::kFloat);
  }
  if (run_state().compute_everything && compute_in_float(op, arguments)) {
    stack->push_back(arguments.back());
    return;
  }
  if (facts.is_foreign && !run_state().compute_everything) {
    run_foreign(op, facts, arguments, stack);
    return;
  }
  if (can_compute(facts, arguments)) {
    try {
      compute(op, facts, arguments, on_device, stack);
      return;
    } catch (const c10::Error& error) {
      // No CPU kernel for this dtype, layout or mix of dtypes: sizes will do, but not where values are wanted.
      if (run_state().compute_everything || !is_of_the_cpu_kernel(error, on_device)) throw;
    }
  }
  leave_values_out(op, facts, arguments, on_device, stack);
}

void run_made_up(const c10::OperatorHandle& op, Stack* stack) {
  const auto& facts = facts_of(op);
  const size_t count = op.schema().arguments().size();
  RunningOperator running(facts.name_index);
  std::vector<IValue> arguments(stack->end() - static_cast<int64_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  leave_values_out(op, facts, arguments, false, stack);
}

}  // namespace zerokit
