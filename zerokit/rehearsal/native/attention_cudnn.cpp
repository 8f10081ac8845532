// What cuDNN's attention allocates, in its order: results as tensors, working memory as DeviceScratch. Sources:
// aten/src/ATen/native/transformers/cuda/attention.cu and attention_backward.cu, aten/src/ATen/native/cudnn/MHA.cpp.
// Tensors are [batch, heads, sequence, head size] or, with cumulative sequence lengths, [tokens, heads, head size].
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "attention.h"
#include "kernel_library.h"

namespace zerokit {
namespace {

using at::Tensor;
using c10::SymInt;

// A tensor of `sizes` whose dimensions follow each other in memory as those of `query` do; broadcast ones come last.
Tensor empty_in_layout_of(const Tensor& query, const std::vector<int64_t>& sizes) {
  if (query.sizes().equals(sizes)) return device_empty_like(query);
  std::vector<size_t> inner_to_outer(sizes.size());
  std::iota(inner_to_outer.begin(), inner_to_outer.end(), 0);
  const auto spread = [&query](size_t dimension) {
    const int64_t stride = query.strides()[dimension];
    return stride == 0 ? std::numeric_limits<int64_t>::max() : stride;
  };
  std::stable_sort(inner_to_outer.begin(), inner_to_outer.end(),
                   [&spread](size_t left, size_t right) { return spread(left) < spread(right); });
  std::vector<int64_t> strides(sizes.size());
  int64_t elements = 1;
  for (const size_t dimension : inner_to_outer) {
    strides[dimension] = elements;
    elements *= sizes[dimension];
  }
  return device_empty_strided(sizes, strides, query.scalar_type());
}

CudnnSizes sizes_of(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& cum_seq_q,
                    int64_t max_q, int64_t max_k, double dropout_p) {
  if (is_given(cum_seq_q)) {
    return {cum_seq_q->numel() - 1, query.size(1), key.size(1), max_q, max_k, query.size(2), value.size(2), dropout_p};
  }
  return {query.size(0), query.size(1), key.size(1),   query.size(2),
          key.size(2),   query.size(3), value.size(3), dropout_p};
}

// Pairs of query and key rows, over all heads. A causal mask begins at the first of both (MHA.cpp, set_causal_mask).
double pairs_of(const CudnnSizes& sizes, const OptionalTensor& starts_q, const OptionalTensor& starts_k,
                bool is_causal) {
  const KeysSeen seen{KeysSeen::kAll, is_causal ? 0 : KeysSeen::kAll, true};
  const double of_a_head = is_given(starts_q) && is_given(starts_k)
                               ? packed_pairs_seen(*starts_q, *starts_k, sizes.queries, sizes.keys, seen)
                               : static_cast<double>(sizes.batch) * pairs_seen(sizes.queries, sizes.keys, seen);
  return static_cast<double>(sizes.heads) * of_a_head;
}

// ---- forward

using CudnnForward = std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor>;

CudnnForward cudnn_attention_forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                     const OptionalTensor& /*attn_bias*/, const OptionalTensor& cum_seq_q,
                                     const OptionalTensor& cum_seq_k, SymInt max_q, SymInt max_k,
                                     bool compute_log_sumexp, double dropout_p, bool is_causal,
                                     bool /*return_debug_mask*/, std::optional<double> /*scale*/) {
  const RunningOperator running(operator_index("aten::_cudnn_attention_forward"));
  const bool packed = is_given(cum_seq_q);
  Tensor seed = device_empty({}, at::kLong);
  Tensor offset = device_empty({}, at::kLong);
  Tensor out;
  Tensor logsumexp;
  if (packed) {
    out = device_empty({query.size(0), query.size(1), value.size(-1)}, query.scalar_type());
    if (compute_log_sumexp) logsumexp = device_empty({query.size(0), query.size(1), 1}, at::kFloat);
  } else {
    out = empty_in_layout_of(query, {query.size(0), query.size(1), query.size(2), value.size(3)});
    if (compute_log_sumexp) logsumexp = device_empty({query.size(0), query.size(1), query.size(2), 1}, at::kFloat);
  }
  const CudnnSizes sizes = sizes_of(query, key, value, cum_seq_q, max_q.expect_int(), max_k.expect_int(), dropout_p);
  const DeviceScratch workspace(cudnn_forward_workspace_bytes(sizes));
  leave_without_values(out);
  if (logsumexp.defined()) leave_without_values(logsumexp);
  const double pairs = pairs_of(sizes, cum_seq_q, cum_seq_k, is_causal);
  count_flops(attention_flops(pairs, sizes.head_dim, sizes.head_dim_value));
  return {out,
          logsumexp,
          cum_seq_q.value_or(Tensor()),
          cum_seq_k.value_or(Tensor()),
          sizes.queries,
          sizes.keys,
          seed,
          offset,
          Tensor()};
}

// ---- backward

// The gradient's last dimension must be contiguous; if not, it is copied into the layout of the result.
Tensor contiguous_in_last(const Tensor& grad_out, const Tensor& out) {
  if (grad_out.stride(-1) == 1) return grad_out;
  Tensor copy = device_empty_like(out);
  leave_without_values(copy);
  return copy;
}

using CudnnGradients = std::tuple<Tensor, Tensor, Tensor>;

CudnnGradients cudnn_attention_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                        const Tensor& value, const Tensor& out, const Tensor& /*logsumexp*/,
                                        const Tensor& /*philox_seed*/,
                                        const Tensor& /*philox_offset*/, const Tensor& /*attn_bias*/,
                                        const Tensor& cum_seq_q, const Tensor& cum_seq_k, SymInt max_q, SymInt max_k,
                                        double dropout_p, bool is_causal, std::optional<double> /*scale*/) {
  if (!grad_out.defined()) return {};
  const RunningOperator running(operator_index("aten::_cudnn_attention_backward"));
  Tensor grad_query = device_empty_like(query);
  Tensor grad_key = device_empty_like(key);
  Tensor grad_value = device_empty_like(value);
  const Tensor usable_grad_out = contiguous_in_last(grad_out, out);
  const CudnnSizes sizes = sizes_of(query, key, value, cum_seq_q, max_q.expect_int(), max_k.expect_int(), dropout_p);
  const DeviceScratch workspace(cudnn_backward_workspace_bytes(sizes));
  for (const Tensor& gradient : {grad_query, grad_key, grad_value}) leave_without_values(gradient);
  const double pairs = pairs_of(sizes, cum_seq_q, cum_seq_k, is_causal);
  count_flops(attention_backward_flops(pairs, sizes.head_dim, sizes.head_dim_value));
  return {grad_query, grad_key, grad_value};
}

// ---- behind scaled_dot_product_attention

CudnnForward scaled_cudnn_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const OptionalTensor& attn_bias, bool compute_log_sumexp, double dropout_p,
                                    bool is_causal, bool return_debug_mask, std::optional<double> scale) {
  return cudnn_attention_forward(query, key, value, attn_bias, std::nullopt, std::nullopt, query.size(2), key.size(2),
                                 compute_log_sumexp, dropout_p, is_causal, return_debug_mask, scale);
}

}  // namespace

void register_cudnn_attention(KernelLibrary& library) {
  library.kernel("_cudnn_attention_forward", cudnn_attention_forward);
  library.kernel("_cudnn_attention_backward", cudnn_attention_backward);
  library.kernel("_scaled_dot_product_cudnn_attention", scaled_cudnn_attention);
  library.kernel("_scaled_dot_product_cudnn_attention_backward", cudnn_attention_backward);
}

}  // namespace zerokit
