// Runs with real values, which rehearsals are checked against: what CUDA can compute and the CPU's kernels cannot.

#include <ATen/Functions.h>

#include "dispatch.h"

namespace zerokit {
namespace {

using at::Tensor;
using c10::IValue;

Tensor softmax_in_float(const std::string& name, const std::vector<IValue>& arguments) {
  const auto tensor = [&](size_t index) { return host_view(arguments[index].toTensor()); };
  const bool logarithm = name.rfind("aten::_log_softmax", 0) == 0;
  if (name.find("backward") != std::string::npos) {
    const int64_t dim = arguments[2].toInt();
    return logarithm ? at::_log_softmax_backward_data(tensor(0), tensor(1), dim, at::kFloat)
                     : at::_softmax_backward_data(tensor(0), tensor(1), dim, at::kFloat);
  }
  const int64_t dim = arguments[1].toInt();
  return logarithm ? at::_log_softmax(tensor(0).to(at::kFloat), dim, false)
                   : at::_softmax(tensor(0).to(at::kFloat), dim, false);
}

// On CUDA softmax of fp16 with a result of fp32 is one kernel, forwards and backwards.
bool is_mixed_softmax(const std::string& name, const std::vector<IValue>& arguments) {
  if (name == "aten::_softmax" || name == "aten::_log_softmax") return arguments[2].toBool();
  if (name != "aten::_softmax_backward_data" && name != "aten::_log_softmax_backward_data") return false;
  return arguments[0].toTensor().scalar_type() != arguments[3].toScalarType();
}

}  // namespace

// True if the operator was computed, into its last argument.
bool compute_in_float(const c10::OperatorHandle& op, const std::vector<IValue>& arguments) {
  if (op.schema().overload_name() != "out" || !is_mixed_softmax(op.schema().name(), arguments)) return false;
  Uncounted uncounted;
  c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset);
  host_view(arguments.back().toTensor()).copy_(softmax_in_float(op.schema().name(), arguments));
  return true;
}

}  // namespace zerokit
