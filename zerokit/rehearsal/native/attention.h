// Attention as a CUDA build of torch would run it: which backend scaled_dot_product_attention takes, and what the
// kernels of that backend allocate. No value is computed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "dispatch.h"
#include "rounding.h"

namespace zerokit {

// ---- the choice (attention.cpp)

// The cuDNN release that the cluster would load, as torch.backends.cudnn.version() gives it; 0 for none.
int64_t cudnn_version();
void set_cudnn_version(int64_t version);

// The at::SDPBackend that torch would choose, with the arguments of aten::_fused_sdp_choice. Raises if every enabled
// backend refuses the inputs.
int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool enable_gqa);

// Makes scaled_dot_product_attention on CUDA tensors call choose_attention. The library does so when it is loaded; call
// it again if libtorch_cuda is loaded later, which sets its own.
void use_attention_choice();

// ---- the kernels (attention_flash.cpp, attention_efficient.cpp, attention_cudnn.cpp)

void register_attention(KernelLibrary& library);
void register_flash_attention(KernelLibrary& library);
void register_efficient_attention(KernelLibrary& library);
void register_cudnn_attention(KernelLibrary& library);

using OptionalTensor = std::optional<at::Tensor>;

inline bool is_given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

// ---- costs (attention_costs.cpp)

constexpr int64_t kFloatBytes = 4;

// True if torch.use_deterministic_algorithms(True) is on and forbids, not only warns.
bool must_be_deterministic();

// The keys that a query sees: its own, and so many before and after it. Queries and keys are numbered from the first
// of both or, as in flash attention, from the last of both.
struct KeysSeen {
  static constexpr int64_t kAll = int64_t{1} << 40;
  int64_t before = kAll;
  int64_t after = kAll;
  bool from_first = false;
};
// As flash attention is given them; none and negative ones are no bounds.
KeysSeen keys_seen_of_flash(bool is_causal, const std::optional<c10::SymInt>& window_left,
                            const std::optional<c10::SymInt>& window_right);
// Pairs of a query and a key row that it sees, of one head: of causal attention about half of all.
double pairs_seen(int64_t queries, int64_t keys, const KeysSeen& seen);
// The same of packed sequences, which begin at `starts`; if those have no values, every sequence counts as the longest.
double packed_pairs_seen(const at::Tensor& starts_q, const at::Tensor& starts_k, int64_t longest_q, int64_t longest_k,
                         const KeysSeen& seen);

// FLOPs over `pairs` of query and key rows, two for each multiply-add, as in torch.utils.flop_counter (which also counts
// pairs behind a causal mask).
double attention_flops(double pairs, int64_t head_dim, int64_t head_dim_value);
double attention_backward_flops(double pairs, int64_t head_dim, int64_t head_dim_value);

// Parts into which flash attention cuts the keys of a forward without dropout; more than one needs accumulators.
int64_t flash_key_splits(int64_t batch, int64_t heads, int64_t queries, int64_t keys, int64_t head_size);

// Sizes in elements.
struct EfficientBackwardSizes {
  at::ScalarType dtype;
  int64_t batch;
  int64_t heads;
  int64_t queries;
  int64_t keys;
  int64_t head_dim;
  int64_t head_dim_value;
  std::optional<int64_t> num_splits_key;
};
// Bytes of the fp32 accumulators that it allocates.
int64_t efficient_backward_workspace_bytes(const EfficientBackwardSizes& sizes);

struct CudnnSizes {
  int64_t batch;
  int64_t heads;
  int64_t key_heads;
  int64_t queries;
  int64_t keys;
  int64_t head_dim;
  int64_t head_dim_value;
  double dropout_p;
};
// Bytes of the workspaces that its execution plans ask for.
int64_t cudnn_forward_workspace_bytes(const CudnnSizes& sizes);
int64_t cudnn_backward_workspace_bytes(const CudnnSizes& sizes);

}  // namespace zerokit
