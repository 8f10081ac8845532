// Results of operators that every layer of a model calls and whose Meta kernels are written in Python: half a
// millisecond a call, where the others take microseconds. Only the plain case is here; all others go the usual way.

#include <ATen/TensorUtils.h>

#include <vector>

#include "dispatch.h"
#include "kernel_library.h"
#include "timing.h"

namespace zerokit {
namespace {

using at::Tensor;
using c10::IValue;
using c10::ScalarType;
using torch::jit::Stack;

// With the very strides that a new tensor has; a contiguous one may have others along dimensions of one element.
bool is_plain(const Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda() && tensor.strides() == at::detail::defaultStrides(tensor.sizes());
}

// True where only the size of the results matters, and is that of `tensor`.
bool has_no_values(const Tensor& tensor) {
  return is_plain(tensor) && tensor.is_floating_point() && tensor.numel() > 0 && !is_computable(tensor) &&
         !run_state().compute_everything;
}

// Absent, or a tensor of `like`'s type.
bool fits(const IValue& weight, const Tensor& like) {
  if (weight.isNone() || !weight.toTensor().defined()) return true;
  return is_plain(weight.toTensor()) && weight.toTensor().scalar_type() == like.scalar_type();
}

Tensor result(c10::IntArrayRef sizes, ScalarType dtype) {
  auto made = device_empty(sizes, dtype);
  leave_without_values(made);
  return made;
}

Tensor result_like(const Tensor& tensor) { return result(tensor.sizes(), tensor.scalar_type()); }

Tensor result_if(bool wanted, const IValue& like) {
  return wanted && like.isTensor() && like.toTensor().defined() ? result_like(like.toTensor()) : Tensor();
}

// Normalization sums up in single precision (aten/src/ATen/OpMathType.h).
ScalarType precision_of_sums(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// One number for each vector that is normalized: the last `normalized` dimensions shrink to 1.
std::vector<int64_t> statistics_shape(const Tensor& tensor, size_t normalized) {
  auto shape = tensor.sizes().vec();
  for (size_t index = shape.size() - normalized; index < shape.size(); ++index) shape[index] = 1;
  return shape;
}

bool ends_in(const Tensor& tensor, const std::vector<int64_t>& shape) {
  return shape.size() <= static_cast<size_t>(tensor.dim()) && tensor.sizes().slice(tensor.dim() - shape.size()) == shape;
}

template <class... Results>
void finish(const c10::OperatorHandle& op, Stack* stack, Results... results) {
  torch::jit::drop(*stack, op.schema().arguments().size());
  torch::jit::push(*stack, std::move(results)...);
}

const IValue& argument(const c10::OperatorHandle& op, const Stack* stack, size_t index) {
  return torch::jit::peek(*stack, index, op.schema().arguments().size());
}

// native_layer_norm(input, normalized_shape, weight?, bias?, eps) -> (output, mean, rstd)
void layer_norm(const c10::OperatorHandle& op, Stack* stack) {
  const Tensor input = argument(op, stack, 0).toTensor();
  const auto shape = argument(op, stack, 1).toIntVector();
  if (!has_no_values(input) || !ends_in(input, shape) || !fits(argument(op, stack, 2), input) ||
      !fits(argument(op, stack, 3), input)) {
    return run_on_device(op, stack);
  }
  RunningOperator running(operator_index(op.schema().name()));
  auto output = result_like(input);
  const auto statistics = statistics_shape(input, shape.size());
  auto mean = result(statistics, precision_of_sums(input));
  auto deviation = result(statistics, precision_of_sums(input));
  finish(op, stack, std::move(output), std::move(mean), std::move(deviation));
}

// native_layer_norm_backward(grad, input, normalized_shape, mean, rstd, weight?, bias?, mask) -> (input, weight, bias)
void layer_norm_backward(const c10::OperatorHandle& op, Stack* stack) {
  const Tensor gradient = argument(op, stack, 0).toTensor();
  const Tensor input = argument(op, stack, 1).toTensor();
  const IValue weight = argument(op, stack, 5), bias = argument(op, stack, 6);
  if (!has_no_values(input) || !fits(gradient, input) || !fits(weight, input) || !fits(bias, input)) {
    return run_on_device(op, stack);
  }
  RunningOperator running(operator_index(op.schema().name()));
  const auto wanted = argument(op, stack, 7).toBoolList();
  auto of_input = result_if(wanted[0], input);
  auto of_weight = result_if(wanted[1], weight);
  auto of_bias = result_if(wanted[2], bias);
  finish(op, stack, std::move(of_input), std::move(of_weight), std::move(of_bias));
}

// _fused_rms_norm(input, normalized_shape, weight?, eps?) -> (output, rstd)
void rms_norm(const c10::OperatorHandle& op, Stack* stack) {
  const Tensor input = argument(op, stack, 0).toTensor();
  const auto shape = argument(op, stack, 1).toIntVector();
  if (!has_no_values(input) || !ends_in(input, shape) || !fits(argument(op, stack, 2), input)) {
    return run_on_device(op, stack);
  }
  RunningOperator running(operator_index(op.schema().name()));
  auto output = result_like(input);
  auto deviation = result(statistics_shape(input, shape.size()), precision_of_sums(input));
  finish(op, stack, std::move(output), std::move(deviation));
}

// _fused_rms_norm_backward(grad, input, normalized_shape, rstd, weight?, mask) -> (input, weight)
void rms_norm_backward(const c10::OperatorHandle& op, Stack* stack) {
  const Tensor gradient = argument(op, stack, 0).toTensor();
  const Tensor input = argument(op, stack, 1).toTensor();
  const IValue weight = argument(op, stack, 4);
  if (!has_no_values(input) || !fits(gradient, input) || !fits(weight, input)) return run_on_device(op, stack);
  RunningOperator running(operator_index(op.schema().name()));
  const auto wanted = argument(op, stack, 5).toBoolList();
  auto of_input = result_if(wanted[0], input);
  auto of_weight = result_if(wanted[1], weight);
  finish(op, stack, std::move(of_input), std::move(of_weight));
}

// native_dropout(input, p, train?) -> (output, mask)
void dropout(const c10::OperatorHandle& op, Stack* stack) {
  const Tensor input = argument(op, stack, 0).toTensor();
  const double probability = argument(op, stack, 1).toDouble();
  const IValue& training = argument(op, stack, 2);
  const bool drops = (training.isNone() || training.toBool()) && probability > 0 && probability < 1;
  if (!has_no_values(input) || !drops) return run_on_device(op, stack);
  RunningOperator running(operator_index(op.schema().name()));
  auto output = result_like(input);
  auto mask = result(input.sizes(), at::kBool);
  finish(op, stack, std::move(output), std::move(mask));
}

// native_dropout_backward(grad, mask, scale) -> input
void dropout_backward(const c10::OperatorHandle& op, Stack* stack) {
  const Tensor gradient = argument(op, stack, 0).toTensor();
  const Tensor mask = argument(op, stack, 1).toTensor();
  if (!has_no_values(gradient) || !is_plain(mask) || mask.sizes() != gradient.sizes()) return run_on_device(op, stack);
  RunningOperator running(operator_index(op.schema().name()));
  finish(op, stack, result_like(gradient));
}

// relu(input) -> output
void relu(const c10::OperatorHandle& op, Stack* stack) {
  const Tensor input = argument(op, stack, 0).toTensor();
  if (!has_no_values(input)) return run_on_device(op, stack);
  RunningOperator running(operator_index(op.schema().name()));
  finish(op, stack, result_like(input));
}

}  // namespace

void register_fast_kernels(KernelLibrary& library) {
  library.impl("native_layer_norm", boxed<&layer_norm>());
  library.impl("native_layer_norm_backward", boxed<&layer_norm_backward>());
  library.impl("_fused_rms_norm", boxed<&rms_norm>());
  library.impl("_fused_rms_norm_backward", boxed<&rms_norm_backward>());
  library.impl("native_dropout", boxed<&dropout>());
  library.impl("native_dropout_backward", boxed<&dropout_backward>());
  library.impl("relu", boxed<&relu>());
}

}  // namespace zerokit
