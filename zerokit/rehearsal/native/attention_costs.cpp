// Arithmetic of the fused attention kernels: FLOPs, and the sizes of working memory that depend on the GPU.
#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention.h"

namespace zerokit {

bool must_be_deterministic() {
  const at::Context& context = at::globalContext();
  return context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly();
}

KeysSeen keys_seen_of_flash(bool is_causal, const std::optional<c10::SymInt>& window_left,
                            const std::optional<c10::SymInt>& window_right) {
  const auto bound = [](const std::optional<c10::SymInt>& size) {
    return size.has_value() && *size >= 0 ? size->expect_int() : KeysSeen::kAll;
  };
  return {bound(window_left), is_causal ? 0 : bound(window_right)};
}

double pairs_seen(int64_t queries, int64_t keys, const KeysSeen& seen) {
  // Of queries that see 1, 2, ... keys, but at most all, the sum up to the one that would see `last`.
  const auto sum_up_to = [keys](int64_t last) {
    const int64_t rising = std::clamp<int64_t>(last, 0, keys);
    return rising * (rising + 1) / 2 + (std::max<int64_t>(last, 0) - rising) * keys;
  };
  // Pairs with keys up to that with the number of the query and `after`.
  const auto pairs_up_to = [&](int64_t after) { return sum_up_to(after + queries) - sum_up_to(after); };
  const int64_t reach = queries + keys;
  const int64_t own = seen.from_first ? 0 : keys - queries;
  const int64_t pairs =
      pairs_up_to(own + std::min(seen.after, reach)) - pairs_up_to(own - std::min(seen.before, reach) - 1);
  return static_cast<double>(pairs);
}

double packed_pairs_seen(const at::Tensor& starts_q, const at::Tensor& starts_k, int64_t longest_q, int64_t longest_k,
                         const KeysSeen& seen) {
  const int64_t sequences = starts_q.numel() - 1;
  const auto is_readable = [](const at::Tensor& starts) {
    return is_computable(starts) && starts.is_contiguous() && starts.scalar_type() == at::kInt;
  };
  if (!is_readable(starts_q) || !is_readable(starts_k) || starts_k.numel() != starts_q.numel()) {
    return static_cast<double>(sequences) * pairs_seen(longest_q, longest_k, seen);
  }
  const at::Tensor values_q = host_view(starts_q);
  const at::Tensor values_k = host_view(starts_k);
  const int* q = values_q.const_data_ptr<int>();
  const int* k = values_k.const_data_ptr<int>();
  double pairs = 0;
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    pairs += pairs_seen(q[sequence + 1] - q[sequence], k[sequence + 1] - k[sequence], seen);
  }
  return pairs;
}

// Scores, then their product with the values.
double attention_flops(double pairs, int64_t head_dim, int64_t head_dim_value) {
  return 2.0 * pairs * static_cast<double>(head_dim + head_dim_value);
}

// Scores again, gradients of query and key: three products over head_dim; gradients of scores and value: two more.
double attention_backward_flops(double pairs, int64_t head_dim, int64_t head_dim_value) {
  return 2.0 * pairs * static_cast<double>(3 * head_dim + 2 * head_dim_value);
}

// ---- flash attention

namespace {

// How full the last wave of thread blocks is.
float occupancy(int64_t thread_blocks, int64_t places) {
  const float waves = static_cast<float>(thread_blocks) / static_cast<float>(places);
  return waves / std::ceil(waves);
}

}  // namespace

// Source: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, set_params_splitkv and num_splits_heuristic:
// the smallest number of parts that fills the GPU to 85 % of the best filling.
int64_t flash_key_splits(int64_t batch, int64_t heads, int64_t queries, int64_t keys, int64_t head_size) {
  constexpr int64_t kMostSplits = 128;
  constexpr int64_t kQueryBlock = 64;
  const int64_t key_block = head_size <= 64 ? 256 : head_size <= 128 ? 128 : 64;
  const int64_t key_blocks = round_up(keys, key_block) / key_block;
  const int64_t thread_blocks = batch * heads * (round_up(queries, kQueryBlock) / kQueryBlock);
  const int64_t places = 2 * static_cast<int64_t>(device_multiprocessors());
  if (static_cast<float>(thread_blocks) >= 0.8F * static_cast<float>(places)) return 1;
  const int64_t most = std::min({kMostSplits, places, key_blocks});
  const auto changes_anything = [&](int64_t splits) {
    return splits == 1 ||
           round_up(key_blocks, splits) / splits != round_up(key_blocks, splits - 1) / (splits - 1);
  };
  float best = 0.0F;
  for (int64_t splits = 1; splits <= most; ++splits) {
    if (changes_anything(splits)) best = std::max(best, occupancy(thread_blocks * splits, places));
  }
  for (int64_t splits = 1; splits <= most; ++splits) {
    if (changes_anything(splits) && occupancy(thread_blocks * splits, places) >= 0.85 * best) return splits;
  }
  return 1;
}

// ---- memory-efficient attention

namespace {

// Tiles of the backward kernel: rows of queries, rows of keys, and the largest head dimension it was compiled for.
struct EfficientTile {
  int64_t queries;
  int64_t keys;
  int64_t largest_head_dim;
};

// The first kernel that fits, in the order of dispatch_cutlassB_* for sm80 and later
// (mem_eff_attention/kernels/cutlassB.h). GPUs with 99 KiB of shared memory for a block (8.6, 8.9, 12.x) cannot run the
// largest tiles.
EfficientTile efficient_tile(at::ScalarType dtype, int64_t head_dim) {
  const Capability device = device_capability();
  const bool little_shared_memory = (device.major == 8 && device.minor > 0) || device.major >= 12;
  const bool has_tile_for_96 = device.major == 8 && (device.minor == 6 || device.minor == 9);
  constexpr int64_t kAny = 65536;
  if (head_dim <= 32) return {64, 64, 32};
  if (head_dim <= 64) return {64, 64, 64};
  if (dtype == at::kFloat) {
    const int64_t rows = little_shared_memory ? 64 : 128;
    return {rows, 64, head_dim <= 128 ? 128 : kAny};
  }
  if (head_dim <= 96 && has_tile_for_96) return {128, 64, 96};
  if (head_dim <= 128) return little_shared_memory ? EfficientTile{64, 64, 128} : EfficientTile{128, 128, 128};
  return {little_shared_memory ? 64 : 128, 64, kAny};
}

int64_t efficient_key_splits(const EfficientBackwardSizes& sizes, const EfficientTile& tile, bool accumulates_keys) {
  const int64_t parallel = sizes.batch * sizes.heads;
  int64_t splits = round_up(sizes.keys, tile.keys) / tile.keys;
  if (sizes.num_splits_key.has_value()) {
    splits = std::min(splits, *sizes.num_splits_key);
  } else {
    if (parallel >= 256 && sizes.keys <= 2 * tile.keys) splits = 1;
    if (accumulates_keys) splits = std::min(splits, 200 / std::max<int64_t>(parallel, 1));
  }
  return must_be_deterministic() ? 1 : std::max<int64_t>(splits, 1);
}

}  // namespace

// Source: mem_eff_attention/kernel_backward.h, Params::workspace_size. The query gradient is always accumulated in
// tiles of fp32 with a header of 16 bytes; key and value gradients only where they do not fit into registers.
int64_t efficient_backward_workspace_bytes(const EfficientBackwardSizes& sizes) {
  constexpr int64_t kHeaderElements = 4;
  const EfficientTile tile = efficient_tile(sizes.dtype, std::max(sizes.head_dim, sizes.head_dim_value));
  const bool accumulates_keys = sizes.dtype != at::kFloat && tile.largest_head_dim > tile.queries;
  int64_t elements = 0;
  if (accumulates_keys) {
    const int64_t splits = efficient_key_splits(sizes, tile, accumulates_keys);
    elements += splits * tile.keys *
                (round_up(sizes.head_dim, tile.queries) + round_up(sizes.head_dim_value, tile.queries));
  }
  const int64_t query_tiles = round_up(sizes.queries, tile.queries) / tile.queries;
  const int64_t columns = round_up(sizes.head_dim, tile.keys) / tile.keys;
  elements += query_tiles * columns * (kHeaderElements + tile.queries * tile.keys);
  return sizes.batch * sizes.heads * round_up(elements, 4) * kFloatBytes;
}

// ---- cuDNN
// Source: get_workspace_size of the execution plans of cuDNN 9.20 (cudnn-frontend 1.23, heuristic mode A, bf16) for the
// compute capabilities 8.0, 8.9, 9.0, 10.0, 10.3 and 12.0; equal to the byte over 26 shapes. The frontend's own part:
// cudnn_frontend/node/scaled_dot_product_flash_attention.h. A very small problem may get another kernel on 10.x.

namespace {

constexpr int64_t kHalfBytes = 2;

// The bits that dropout drew, which plans for Blackwell make before the kernel runs.
int64_t drawn_bits_bytes(const CudnnSizes& sizes) {
  constexpr int64_t kTile = 128;
  if (device_capability().major != 10 || sizes.dropout_p == 0.0) return 0;
  return sizes.batch * sizes.heads * round_up(sizes.queries, kTile) * round_up(sizes.keys, kTile) / 8;
}

}  // namespace

int64_t cudnn_forward_workspace_bytes(const CudnnSizes& sizes) {
  if (device_capability().major == 9) return 256;
  const int64_t bits = drawn_bits_bytes(sizes);
  return bits > 0 ? bits + 128 : 0;
}

int64_t cudnn_backward_workspace_bytes(const CudnnSizes& sizes) {
  const int64_t heads = sizes.batch * sizes.heads;
  const int64_t gradient_and_row_sums = heads * sizes.queries * (sizes.head_dim + 1) * kFloatBytes;
  int64_t more = drawn_bits_bytes(sizes);
  if (sizes.key_heads != sizes.heads) {  // a key and value gradient for every query head
    more += heads * sizes.keys * (sizes.head_dim + sizes.head_dim_value) * kHalfBytes;
  }
  const int major = device_capability().major;
  if (major == 9) return gradient_and_row_sums + more + 256;
  if (major != 10) more += heads * round_up(sizes.queries, 8) * sizes.head_dim * kFloatBytes;
  return gradient_and_row_sums + (more > 0 ? more + 128 : 0);
}

}  // namespace zerokit
