// What the memory-efficient attention kernels (cutlassF and cutlassB) allocate, in their order: results as tensors,
// working memory as DeviceScratch. Sources: aten/src/ATen/native/transformers/cuda/attention.cu and
// attention_backward.cu. Tensors are [batch, sequence, heads, head size].
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "attention.h"
#include "kernel_library.h"

namespace zerokit {
namespace {

using at::Tensor;
using c10::SymInt;

constexpr int64_t kLogsumexpAlignment = 32;
constexpr int64_t kBiasGradientAlignment = 16;
constexpr int64_t kLargestHeadInRegisters = 128;
constexpr int64_t kMostSequences = 65535;  // a dimension of the launch grid

constexpr int64_t kNoMask = 0;
constexpr int64_t kCausalFromTopLeft = 1;

// Pairs of query and key rows, over all heads. `window_size`: keys that a query sees, its own among them; 0 for all.
double pairs_of(const Tensor& query, const Tensor& key, const OptionalTensor& starts_q, const OptionalTensor& starts_k,
                int64_t longest_q, int64_t longest_k, int64_t custom_mask_type,
                std::optional<int64_t> window_size) {
  const int64_t window = window_size.value_or(0);
  const KeysSeen seen{window > 0 ? window - 1 : KeysSeen::kAll, custom_mask_type == kNoMask ? KeysSeen::kAll : 0,
                      custom_mask_type == kCausalFromTopLeft};
  const double of_a_head =
      is_given(starts_q) && is_given(starts_k)
          ? packed_pairs_seen(*starts_q, *starts_k, longest_q, longest_k, seen)
          : static_cast<double>(query.size(0)) * pairs_seen(query.size(1), key.size(1), seen);
  return static_cast<double>(query.size(2)) * of_a_head;
}

// ---- forward

using EfficientForward = std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt>;

EfficientForward efficient_attention_forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                             const OptionalTensor& /*bias*/, const OptionalTensor& cu_seqlens_q,
                                             const OptionalTensor& cu_seqlens_k, std::optional<SymInt> max_seqlen_q,
                                             std::optional<SymInt> max_seqlen_k, double /*dropout_p*/,
                                             int64_t custom_mask_type, bool compute_log_sumexp,
                                             std::optional<double> /*scale*/, const OptionalTensor& /*seqlen_k*/,
                                             std::optional<int64_t> window_size) {
  const RunningOperator running(operator_index("aten::_efficient_attention_forward"));
  const bool packed = is_given(cu_seqlens_q);
  const int64_t sequences = packed ? cu_seqlens_q->numel() - 1 : query.size(0);
  const int64_t queries = packed ? max_seqlen_q.value().expect_int() : query.size(1);
  const int64_t keys = packed && max_seqlen_k.has_value() ? max_seqlen_k->expect_int() : key.size(1);
  const int64_t heads = query.size(2);
  // Outside of graph capture the random state stays on the host.
  Tensor seed = at::empty({}, at::dtype(at::kLong));
  Tensor offset = at::empty({}, at::dtype(at::kLong));
  Tensor out = device_empty({query.size(0), query.size(1), heads, value.size(3)}, query.scalar_type());
  const int64_t aligned_queries = compute_log_sumexp ? round_up(queries, kLogsumexpAlignment) : 0;
  Tensor logsumexp = device_empty({sequences, heads, aligned_queries}, at::kFloat);
  std::optional<DeviceScratch> output_accumulator;
  if (std::max(key.size(3), value.size(3)) > kLargestHeadInRegisters && query.scalar_type() != at::kFloat) {
    output_accumulator.emplace(out.numel() * kFloatBytes);
  }
  leave_without_values(out);
  leave_without_values(logsumexp);
  const double pairs =
      pairs_of(query, key, cu_seqlens_q, cu_seqlens_k, queries, keys, custom_mask_type, window_size);
  count_flops(attention_flops(pairs, query.size(3), value.size(3)));
  return {out, logsumexp, seed, offset, queries, keys};
}

// ---- backward

using EfficientGradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

EfficientGradients separate_gradients(const Tensor& query, const Tensor& key, const Tensor& value) {
  Tensor grad_query = device_empty(query.sizes(), query.scalar_type());
  Tensor grad_key = device_empty(key.sizes(), key.scalar_type());
  Tensor grad_value = device_empty(value.sizes(), value.scalar_type());
  return {grad_query, grad_key, grad_value, Tensor()};
}

// One block for all three, laid out as the output of a fused projection.
EfficientGradients shared_gradients(const Tensor& query) {
  const std::array<int64_t, 5> shape{query.size(0), query.size(1), 3, query.size(2), query.size(3)};
  const Tensor chunk = device_empty(shape, query.scalar_type());
  return {chunk.select(2, 0), chunk.select(2, 1), chunk.select(2, 2), Tensor()};
}

Tensor bias_gradient(const Tensor& bias) {
  auto shape = bias.sizes().vec();
  const int64_t columns = shape.back();
  shape.back() = round_up(columns, kBiasGradientAlignment);
  return device_empty(shape, bias.scalar_type()).slice(-1, 0, columns);
}

// Row sums of grad_out x out. The kernels for half precision make them; before the one for float it is done by ordinary
// operators, whose intermediate results live as long as the statement.
struct RowSums {
  RowSums(const Tensor& query, int64_t out_elements) {
    const int64_t bytes = query.size(0) * query.size(1) * query.size(2) * kFloatBytes;
    if (query.scalar_type() == at::kFloat) {
      std::optional<DeviceScratch> product;
      std::optional<DeviceScratch> sum;
      product.emplace(out_elements * kFloatBytes);
      sum.emplace(bytes);
      sums.emplace(bytes);
    } else {
      sums.emplace(bytes);
    }
  }
  std::optional<DeviceScratch> sums;
};

EfficientGradients efficient_attention_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias,
    const Tensor& out, const OptionalTensor& cu_seqlens_q, const OptionalTensor& cu_seqlens_k, SymInt max_seqlen_q,
    SymInt max_seqlen_k, const Tensor& /*logsumexp*/, double /*dropout_p*/, const Tensor& /*philox_seed*/,
    const Tensor& /*philox_offset*/, int64_t custom_mask_type, bool bias_requires_grad,
    std::optional<double> /*scale*/, std::optional<int64_t> num_splits_key, std::optional<int64_t> window_size,
    bool shared_storage_dqdkdv) {
  if (!grad_out.defined()) return {};
  const RunningOperator running(operator_index("aten::_efficient_attention_backward"));
  const Tensor contiguous_grad_out = grad_out.contiguous();
  EfficientGradients gradients = shared_storage_dqdkdv ? shared_gradients(query) : separate_gradients(query, key, value);
  if (bias_requires_grad && is_given(bias)) std::get<3>(gradients) = bias_gradient(*bias);
  const RowSums row_sums(query, out.numel());
  const bool packed = is_given(cu_seqlens_q);
  const EfficientBackwardSizes sizes{
      query.scalar_type(),
      packed ? cu_seqlens_q->numel() - 1 : query.size(0),
      query.size(2),
      packed ? max_seqlen_q.expect_int() : query.size(1),
      packed ? max_seqlen_k.expect_int() : key.size(1),
      query.size(3),
      value.size(3),
      num_splits_key,
  };
  const DeviceScratch workspace(efficient_backward_workspace_bytes(sizes));
  std::apply([](const auto&... gradient) { ((gradient.defined() ? leave_without_values(gradient) : void()), ...); },
             gradients);
  const double pairs = pairs_of(query, key, cu_seqlens_q, cu_seqlens_k, sizes.queries, sizes.keys, custom_mask_type,
                                window_size);
  count_flops(attention_backward_flops(pairs, query.size(3), value.size(3)));
  return gradients;
}

// ---- behind scaled_dot_product_attention: [batch, heads, sequence, head size]

void check_batch(const Tensor& query) {
  // Beyond this size torch runs the batch in parts, each with results of its own.
  TORCH_CHECK_NOT_IMPLEMENTED(query.size(0) <= kMostSequences, "efficient attention is rehearsed for batches of up to ",
                              kMostSequences, ", got ", query.size(0));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> scaled_efficient_attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& attn_bias,
    bool compute_log_sumexp, double dropout_p, bool is_causal, std::optional<double> scale) {
  check_batch(query);
  auto [out, logsumexp, seed, offset, queries, keys] = efficient_attention_forward(
      query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_bias, std::nullopt, std::nullopt,
      std::nullopt, std::nullopt, dropout_p, is_causal ? kCausalFromTopLeft : kNoMask, compute_log_sumexp, scale,
      std::nullopt, std::nullopt);
  return {out.transpose(1, 2), logsumexp, seed, offset};
}

EfficientGradients scaled_efficient_attention_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                                       const Tensor& value, const Tensor& attn_bias, const Tensor& out,
                                                       const Tensor& logsumexp, const Tensor& philox_seed,
                                                       const Tensor& philox_offset, double dropout_p,
                                                       std::array<bool, 4> grad_input_mask, bool is_causal,
                                                       std::optional<double> scale) {
  if (!grad_out.defined()) return {};
  check_batch(query);
  auto [grad_query, grad_key, grad_value, grad_bias] = efficient_attention_backward(
      grad_out.transpose(1, 2), query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_bias,
      out.transpose(1, 2), std::nullopt, std::nullopt, query.size(2), key.size(2), logsumexp, dropout_p, philox_seed,
      philox_offset, is_causal ? kCausalFromTopLeft : kNoMask, grad_input_mask[3], scale, std::nullopt, std::nullopt,
      false);
  return {grad_query.transpose(1, 2), grad_key.transpose(1, 2), grad_value.transpose(1, 2), grad_bias};
}

}  // namespace

void register_efficient_attention(KernelLibrary& library) {
  library.kernel("_efficient_attention_forward", efficient_attention_forward);
  library.kernel("_efficient_attention_backward", efficient_attention_backward);
  library.kernel("_scaled_dot_product_efficient_attention", scaled_efficient_attention);
  library.kernel("_scaled_dot_product_efficient_attention_backward", scaled_efficient_attention_backward);
}

}  // namespace zerokit
