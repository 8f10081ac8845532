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

// The cuDNN release that the rehearsed installation would load, as torch.backends.cudnn.version() spells it; 0 for
// none.
int64_t cudnn_version();
void set_cudnn_version(int64_t version);

// The at::SDPBackend that torch would choose (math 0, flash 1, efficient 2, cuDNN 3). Arguments as those of
// aten::_fused_sdp_choice. Raises when every backend that is enabled refuses the inputs.
int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool enable_gqa);

// Makes scaled_dot_product_attention on CUDA tensors ask choose_attention. Runs by itself when the library is loaded;
// to be called again if libtorch_cuda is loaded later, because that library sets its own answer.
void use_attention_choice();

// ---- the kernels (attention_flash.cpp, attention_efficient.cpp, attention_cudnn.cpp)

// Adds the kernels to the CUDA key of aten. Runs by itself when the library is loaded; the same remark holds.
void register_attention(KernelLibrary& library);
void register_flash_attention(KernelLibrary& library);
void register_efficient_attention(KernelLibrary& library);
void register_cudnn_attention(KernelLibrary& library);

// Names what this thread allocates while it lives.
struct AttentionOperator {
  explicit AttentionOperator(const char* name) : running_(operator_index(name)) {}

 private:
  RunningOperator running_;
};

using OptionalTensor = std::optional<at::Tensor>;

inline bool is_given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

// ---- costs (attention_costs.cpp)

constexpr int64_t kFloatBytes = 4;

// True if torch.use_deterministic_algorithms(True) is on and forbids, not only warns.
bool must_be_deterministic();

// The keys that a query sees: its own, and so many before and after it. A query's own key has its number, counted from
// the first of both or (flash attention's way, the lower right corner of the mask) from the last of both.
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
// Those of packed sequences, which begin where `starts` say. The offsets are small integers, so the virtual device knows
// them; if not, every sequence counts as the longest, as in torch.utils.flop_counter.
double packed_pairs_seen(const at::Tensor& starts_q, const at::Tensor& starts_k, int64_t longest_q, int64_t longest_k,
                         const KeysSeen& seen);

// FLOPs over `pairs` of query and key rows (batch x heads x those of a head), two for each multiply-add, as
// torch.utils.flop_counter counts (sdpa_flop_count, sdpa_backward_flop_count), which counts pairs behind a causal mask.
double attention_flops(double pairs, int64_t head_dim, int64_t head_dim_value);
double attention_backward_flops(double pairs, int64_t head_dim, int64_t head_dim_value);

// Parts into which flash attention cuts the keys of a forward without dropout; more than one needs accumulators.
int64_t flash_key_splits(int64_t batch, int64_t heads, int64_t queries, int64_t keys, int64_t head_size);

// What _efficient_attention_backward is called with; sizes in elements.
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

// What cuDNN's attention is called with; sizes in elements.
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
