// What the flash attention kernels allocate, in their order: results as tensors, working memory as DeviceScratch.
// Sources, under aten/src/ATen/native/transformers/cuda: flash_attn/flash_api.cpp (mha_fwd, mha_varlen_fwd, mha_bwd,
// mha_varlen_bwd), attention.cu, attention_backward.cu. Tensors are [batch, sequence, heads, head size] or, with
// cumulative sequence lengths, [tokens of all sequences, heads, head size].
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>

#include <optional>
#include <tuple>
#include <utility>

#include "attention.h"
#include "kernel_library.h"

namespace zerokit {
namespace {

using at::Tensor;
using c10::SymInt;

constexpr int64_t kRowBlock = 128;  // rows that one thread block may write at once

int64_t rounded_head(int64_t head_size) { return round_up(head_size, head_size <= 128 ? 32 : 64); }

void check_inputs(const Tensor& query, const Tensor& key, const Tensor& value) {
  const at::ScalarType dtype = query.scalar_type();
  const int64_t head_size = query.size(-1);
  TORCH_CHECK(device_capability().major >= 8, "FlashAttention only supports Ampere GPUs or newer.");
  TORCH_CHECK(dtype == at::kHalf || dtype == at::kBFloat16, "FlashAttention only supports fp16 and bf16, got ", dtype);
  TORCH_CHECK(key.scalar_type() == dtype && value.scalar_type() == dtype,
              "FlashAttention needs query, key and value of one dtype, got ", dtype, ", ", key.scalar_type(), " and ",
              value.scalar_type());
  TORCH_CHECK(head_size <= 256 && head_size % 8 == 0,
              "FlashAttention needs a head size that is a multiple of 8 and at most 256, got ", head_size);
  TORCH_CHECK(query.size(-2) % key.size(-2) == 0, "FlashAttention needs a multiple of the ", key.size(-2),
              " key heads as query heads, got ", query.size(-2));
  TORCH_CHECK(query.stride(-1) == 1 && key.stride(-1) == 1 && value.stride(-1) == 1,
              "FlashAttention needs a contiguous last dimension");
}

// ---- sizes

struct Problem {
  int64_t sequences;
  int64_t queries;          // of the longest sequence
  int64_t keys;             // likewise
  double pairs;             // of query and key rows, over all heads
  int64_t accumulator_rows; // fp32 rows per head: whole blocks, or packed sequences a block apart
};

Problem problem_of(const Tensor& query, const Tensor& key, const OptionalTensor& cum_seq_q,
                   const OptionalTensor& cum_seq_k, int64_t max_q, int64_t max_k,
                   const KeysSeen& seen) {
  const int64_t heads = query.size(-2);
  if (is_given(cum_seq_q)) {
    const int64_t sequences = cum_seq_q->numel() - 1;
    TORCH_CHECK(is_given(cum_seq_k), "FlashAttention needs cum_seq_k where it has cum_seq_q");
    const double pairs = packed_pairs_seen(*cum_seq_q, *cum_seq_k, max_q, max_k, seen);
    return {sequences, max_q, max_k, static_cast<double>(heads) * pairs, query.size(0) + kRowBlock * sequences};
  }
  const int64_t batch = query.size(0);
  const double pairs = static_cast<double>(batch * heads) * pairs_seen(query.size(1), key.size(1), seen);
  return {batch, query.size(1), key.size(1), pairs, batch * round_up(query.size(1), kRowBlock)};
}

// ---- forward

// Accumulators of a forward whose keys are split; they live until the kernel is done.
struct SplitAccumulators {
  SplitAccumulators(int64_t batch, int64_t heads, int64_t queries, int64_t keys, int64_t head_size) {
    const int64_t splits = flash_key_splits(batch, heads, queries, keys, head_size);
    if (splits == 1) return;
    const int64_t rows = splits * batch * heads * queries;
    logsumexp.emplace(rows * kFloatBytes);
    output.emplace(rows * rounded_head(head_size) * kFloatBytes);
  }
  std::optional<DeviceScratch> logsumexp;
  std::optional<DeviceScratch> output;
};

struct ForwardCall {
  const Tensor& query;
  const Tensor& key;
  Problem problem;
  double dropout_p;
  bool is_packed;
  bool is_paged;
  bool has_window;
  bool has_alibi;
  bool return_softmax;
};

// A single query of grouped heads: the group takes the place of the sequence, so that the kernel has rows to work on.
bool groups_become_rows(const ForwardCall& call) {
  return call.problem.sequences > 0 && call.problem.queries == 1 && call.query.size(-2) > call.key.size(-2) &&
         !call.has_window && call.dropout_p == 0.0 && !call.has_alibi;
}

// Seed and offset in one tensor, and an empty one where the offset used to be.
std::pair<Tensor, Tensor> random_state(double dropout_p) {
  Tensor state = device_empty({2}, at::kUInt64);
  Tensor unused = device_empty({}, at::kUInt64);
  if (dropout_p > 0.0) state = device_empty({2}, at::kUInt64);  // the kernel replaces the first one
  return {state, unused};
}

using FlashForward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

FlashForward run_forward(const ForwardCall& call, const OptionalTensor& given_out) {
  const auto& [sequences, queries, keys, pairs, unused_rows] = call.problem;
  const int64_t heads = call.query.size(-2);
  const int64_t key_heads = call.key.size(-2);
  const int64_t head_size = call.query.size(-1);
  const bool regrouped = groups_become_rows(call);
  const int64_t rows = regrouped ? heads / key_heads : queries;
  const int64_t rows_heads = regrouped ? key_heads : heads;
  Tensor query = call.query;
  if (regrouped) {
    query = query.reshape({sequences, key_heads, rows, head_size}).transpose(1, 2);
    if (call.is_packed) query = query.reshape({sequences * rows, key_heads, head_size});
  }
  Tensor out = given_out.has_value() ? *given_out : device_empty_like(query);
  Tensor logsumexp = call.is_packed ? device_empty({rows_heads, query.size(0)}, at::kFloat)
                                    : device_empty({sequences, rows_heads, rows}, at::kFloat);
  Tensor softmax;
  if (call.return_softmax) {
    const std::vector<int64_t> shape{sequences, heads, round_up(queries, kRowBlock), round_up(keys, kRowBlock)};
    softmax = device_empty(shape, query.scalar_type());
  }
  std::optional<SplitAccumulators> accumulators;
  if (call.dropout_p == 0.0 && (!call.is_packed || call.is_paged || regrouped)) {
    accumulators.emplace(sequences, rows_heads, rows, keys, head_size);
  }
  auto [state, unused] = random_state(call.dropout_p);
  leave_without_values(out);
  leave_without_values(logsumexp);
  count_flops(attention_flops(pairs, head_size, head_size));
  if (regrouped) {
    if (!given_out.has_value()) {
      if (call.is_packed) out = out.reshape({sequences, rows, key_heads, head_size});
      out = out.transpose(1, 2);
      out = call.is_packed ? out.reshape({sequences, heads, head_size}) : out.reshape({sequences, 1, heads, head_size});
    }
    logsumexp = call.is_packed ? logsumexp.reshape({heads, sequences}) : logsumexp.reshape({sequences, heads, 1});
  }
  if (!softmax.defined()) softmax = device_empty({0}, query.scalar_type());
  return {out, logsumexp, state, unused, softmax};
}

bool limits_window(const std::optional<SymInt>& size, int64_t keys) {
  return size.has_value() && *size >= 0 && *size < keys;
}

FlashForward flash_attention_forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                     const OptionalTensor& cum_seq_q, const OptionalTensor& cum_seq_k, SymInt max_q,
                                     SymInt max_k, double dropout_p, bool is_causal, bool return_debug_mask,
                                     std::optional<double> /*scale*/, std::optional<SymInt> window_left,
                                     std::optional<SymInt> window_right, const OptionalTensor& /*seqused_k*/,
                                     const OptionalTensor& alibi_slopes, const OptionalTensor& block_table,
                                     std::optional<int64_t> /*num_splits*/) {
  const RunningOperator running(operator_index("aten::_flash_attention_forward"));
  check_inputs(query, key, value);
  TORCH_CHECK(!return_debug_mask || dropout_p > 0.0, "return_softmax is only supported when p_dropout > 0.0");
  const Problem problem = problem_of(query, key, cum_seq_q, cum_seq_k, max_q.expect_int(), max_k.expect_int(),
                                     keys_seen_of_flash(is_causal, window_left, window_right));
  const bool has_window = limits_window(window_left, problem.keys) || limits_window(window_right, problem.keys);
  const ForwardCall call{query,      key,    problem,
                         dropout_p,  is_given(cum_seq_q), is_given(block_table),
                         has_window, is_given(alibi_slopes), return_debug_mask};
  return run_forward(call, std::nullopt);
}

Tensor flash_attention_forward_inplace(Tensor& out, const Tensor& query, const Tensor& key, const Tensor& value,
                                       const OptionalTensor& cum_seq_q, const OptionalTensor& cum_seq_k, SymInt max_q,
                                       SymInt max_k, double dropout_p, bool is_causal, bool return_debug_mask,
                                       std::optional<double> /*scale*/, std::optional<SymInt> window_left,
                                       std::optional<SymInt> window_right, const OptionalTensor& /*seqused_k*/,
                                       const OptionalTensor& alibi_slopes, const OptionalTensor& block_table,
                                       std::optional<int64_t> /*num_splits*/) {
  const RunningOperator running(operator_index("aten::_flash_attention_forward_no_dropout_inplace"));
  check_inputs(query, key, value);
  const Problem problem = problem_of(query, key, cum_seq_q, cum_seq_k, max_q.expect_int(), max_k.expect_int(),
                                     keys_seen_of_flash(is_causal, window_left, window_right));
  const bool has_window = limits_window(window_left, problem.keys) || limits_window(window_right, problem.keys);
  const ForwardCall call{query,      key,    problem,
                         dropout_p,  is_given(cum_seq_q), is_given(block_table),
                         has_window, is_given(alibi_slopes), return_debug_mask};
  return std::get<1>(run_forward(call, out));
}

// ---- backward

// A deterministic backward gives each of its thread blocks in flight a query gradient of its own.
int64_t query_gradient_copies(int64_t sequences, int64_t heads) {
  const int64_t parallel = sequences * heads;
  if (!must_be_deterministic() || parallel == 0) return 1;
  return (device_multiprocessors() + parallel - 1) / parallel;
}

using FlashGradients = std::tuple<Tensor, Tensor, Tensor>;

FlashGradients flash_attention_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                        const Tensor& value, const Tensor& out, const Tensor& /*logsumexp*/,
                                        const Tensor& cum_seq_q,
                                        const Tensor& cum_seq_k, SymInt max_q, SymInt max_k, double /*dropout_p*/,
                                        bool is_causal, const Tensor& /*rng_state*/, const Tensor& /*unused*/,
                                        std::optional<double> /*scale*/, std::optional<SymInt> window_left,
                                        std::optional<SymInt> window_right) {
  const RunningOperator running(operator_index("aten::_flash_attention_backward"));
  check_inputs(query, key, value);
  const Tensor contiguous_grad_out = grad_out.contiguous();
  const Tensor contiguous_out = out.contiguous();
  Tensor grad_query = device_empty_like(query);
  Tensor grad_key = device_empty_like(key);
  Tensor grad_value = device_empty_like(value);
  const int64_t heads = query.size(-2);
  const int64_t head_size = query.size(-1);
  const Problem problem = problem_of(query, key, cum_seq_q, cum_seq_k, max_q.expect_int(), max_k.expect_int(),
                                     keys_seen_of_flash(is_causal, window_left, window_right));
  const int64_t copies = query_gradient_copies(problem.sequences, heads);
  const int64_t rows = problem.accumulator_rows * heads;
  const DeviceScratch softmax_sums(rows * kFloatBytes);
  const DeviceScratch query_gradient(copies * rows * rounded_head(head_size) * kFloatBytes);
  std::optional<DeviceScratch> expanded_grad_key;
  std::optional<DeviceScratch> expanded_grad_value;
  if (key.size(-2) != heads) {  // grouped queries: a gradient for every query head, summed over the group at the end
    const int64_t bytes = key.numel() / key.size(-2) * heads * static_cast<int64_t>(key.itemsize());
    expanded_grad_key.emplace(bytes);
    expanded_grad_value.emplace(bytes);
  }
  for (const Tensor& gradient : {grad_query, grad_key, grad_value}) leave_without_values(gradient);
  count_flops(attention_backward_flops(problem.pairs, head_size, head_size));
  return {grad_query, grad_key, grad_value};
}

// ---- behind scaled_dot_product_attention: [batch, heads, sequence, head size]

using ScaledResult = std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor>;

ScaledResult scaled_flash_attention(const Tensor& query, const Tensor& key, const Tensor& value, double dropout_p,
                                    bool is_causal, bool return_debug_mask, std::optional<double> scale) {
  const int64_t queries = query.size(2);
  const int64_t keys = key.size(2);
  auto [out, logsumexp, state, unused, softmax] = flash_attention_forward(
      query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), std::nullopt, std::nullopt, queries, keys,
      dropout_p, is_causal, return_debug_mask, scale, std::nullopt, std::nullopt, std::nullopt, std::nullopt,
      std::nullopt, std::nullopt);
  return {out.transpose(1, 2), logsumexp, Tensor(), Tensor(), queries, keys, state, unused, softmax};
}

FlashGradients scaled_flash_attention_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                               const Tensor& value, const Tensor& out, const Tensor& logsumexp,
                                               const Tensor& cum_seq_q, const Tensor& cum_seq_k, SymInt max_q, SymInt max_k,
                                               double dropout_p, bool is_causal, const Tensor& philox_seed,
                                               const Tensor& philox_offset, std::optional<double> scale) {
  if (!grad_out.defined()) return {};
  auto [grad_query, grad_key, grad_value] = flash_attention_backward(
      grad_out.transpose(1, 2), query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), out.transpose(1, 2),
      logsumexp, cum_seq_q, cum_seq_k, std::move(max_q), std::move(max_k), dropout_p, is_causal, philox_seed,
      philox_offset, scale, std::nullopt, std::nullopt);
  return {grad_query.transpose(1, 2), grad_key.transpose(1, 2), grad_value.transpose(1, 2)};
}

}  // namespace

void register_flash_attention(KernelLibrary& library) {
  library.kernel("_flash_attention_forward", flash_attention_forward);
  library.kernel("_flash_attention_forward_no_dropout_inplace", flash_attention_forward_inplace);
  library.kernel("_flash_attention_backward", flash_attention_backward);
  library.kernel("_scaled_dot_product_flash_attention", scaled_flash_attention);
  library.kernel("_scaled_dot_product_flash_attention_backward", scaled_flash_attention_backward);
}

}  // namespace zerokit
