// What older releases of torch lack, under the names that newer ones have for it.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/version.h>

#include <vector>

#define TORCH_IS_BEFORE(minor) (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < (minor))

namespace zerokit {

#if TORCH_IS_BEFORE(9)
// The dispatch table has no public reader; an explicit instantiation may name the private member.
const c10::KernelFunction& kernel_in_table(const c10::OperatorHandle& op, c10::DispatchKeySet keys);
template <auto Definition>
struct Reader {
  friend const c10::KernelFunction& kernel_in_table(const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
    return (op.*Definition)->op.lookup(keys);
  }
};
template struct Reader<&c10::OperatorHandle::operatorDef_>;

using Kernel = c10::KernelFunction;
inline Kernel computed_kernel(const c10::OperatorHandle& op, c10::DispatchKey key) {
  return kernel_in_table(op, c10::DispatchKeySet(key));
}
#else
using Kernel = c10::SafeKernelFunction;
inline Kernel computed_kernel(const c10::OperatorHandle& op, c10::DispatchKey key) {
  return op.getComputedKernelForDispatchKey(key);
}
#endif

#if TORCH_IS_BEFORE(6)
// As priority_order in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of 2.5.1; nobody can change it.
inline std::vector<sdp::SDPBackend> attention_order() {
  return {sdp::SDPBackend::flash_attention, sdp::SDPBackend::efficient_attention, sdp::SDPBackend::math,
          sdp::SDPBackend::cudnn_attention};
}
inline void set_attention_order(const std::vector<int64_t>&) {}
#else
inline auto attention_order() { return at::globalContext().sDPPriorityOrder(); }
inline void set_attention_order(const std::vector<int64_t>& order) { at::globalContext().setSDPPriorityOrder(order); }
#endif

// Query heads that share key heads: before 2.8 a kernel that takes them takes any number of heads.
template <bool supports_gqa, bool requires_same_num_heads>
bool check_heads(const sdp::sdp_params& params) {
#if TORCH_IS_BEFORE(8)
  return sdp::check_batch_size_and_num_heads_dense<supports_gqa>(params, false);
#else
  return sdp::check_batch_size_and_num_heads_dense<supports_gqa, requires_same_num_heads>(params, false);
#endif
}

}  // namespace zerokit
