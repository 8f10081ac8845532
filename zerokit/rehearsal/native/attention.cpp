// The rules by which a CUDA build of torch 2.13 chooses a backend for scaled_dot_product_attention.
// Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (select_sdp_backend and the can_use_*_attention
// functions); what does not depend on CUDA is reused from ATen/native/transformers/sdp_utils_cpp.h.
#include <ATen/Context.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/util/env.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <tuple>

#include "attention.h"
#include "kernel_library.h"
#include "torch_versions.h"

namespace zerokit {
namespace {

using sdp::SDPBackend;
using sdp::sdp_params;

// As CUDNN_VERSION; cudnn_release.py says which a torch brings.
std::atomic<int64_t> assumed_cudnn_version{92000};

constexpr Capability kFirstWithBfloat16{8, 0};
constexpr Capability kFirstWithEfficient{5, 0};
constexpr Capability kLastKnown{12, 1};

bool between(const Capability& device, const Capability& first, const Capability& last) {
  const auto order = [](const Capability& capability) { return std::tie(capability.major, capability.minor); };
  return order(device) >= order(first) && order(device) <= order(last);
}

bool has_dtype(const sdp_params& params, std::initializer_list<at::ScalarType> allowed) {
  return params.query.dtype() == params.key.dtype() && params.query.dtype() == params.value.dtype() &&
      std::find(allowed.begin(), allowed.end(), params.query.scalar_type()) != allowed.end();
}

bool is_half_precision(const sdp_params& params) {
  return device_capability().major >= 8 ? has_dtype(params, {at::kHalf, at::kBFloat16})
                                        : has_dtype(params, {at::kHalf});
}

// What all three fused backends ask: four dimensions, on the device.
bool has_fused_shape(const sdp_params& params) {
  return params.query.is_cuda() && sdp::check_tensor_shapes(params, false);
}

// ---- flash attention

bool flash_takes_head_dims(const sdp_params& params) {
  const int64_t head_dim = params.query.size(-1);
  return head_dim == params.key.size(-1) && head_dim == params.value.size(-1) && head_dim <= 256;
}

// Too little shared memory for some backward kernels on these GPUs:
// check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120.
bool flash_trains_head_dim(const sdp_params& params) {
  const Capability device = device_capability();
  if (!between(device, {8, 6}, {8, 9}) && !between(device, {12, 0}, {12, 1})) {
    return true;
  }
  const int64_t head_dim = params.query.size(-1);
  return !sdp::input_requires_grad(params) || head_dim <= 192 || (head_dim > 224 && params.dropout == 0.0);
}

// Flash attention aligns a causal mask to the lower right corner, torch to the upper left one.
bool flash_takes_causal(const sdp_params& params) {
  return !params.is_causal || params.query.is_nested() || params.key.is_nested() ||
      params.query.size(-2) == params.key.size(-2);
}

bool flash_accepts(const sdp_params& params) {
  if (!sdp::check_runtime_disabled_flash(params, false) || !has_fused_shape(params) ||
      !sdp::check_for_attn_mask(params, false) || !flash_takes_head_dims(params) ||
      !between(device_capability(), kFirstWithBfloat16, kLastKnown) || !flash_trains_head_dim(params) ||
      !flash_takes_causal(params) || !is_half_precision(params)) {
    return false;
  }
  if (sdp::has_for_nested_inputs(params) &&
      (!sdp::check_batch_size_nested(params, false) || params.query.size(-1) % 8 != 0 ||
       !sdp::check_for_seq_len_0_nested_tensor(params, false))) {
    return false;
  }
  return !sdp::has_only_dense_inputs(params) ||
      (check_heads</*supports_gqa=*/true, /*requires_same_num_heads=*/true>(params) &&
       sdp::check_nonzero_sequence_lengths_dense(params, false) &&
       sdp::check_last_dim_stride_equals_1_dense</*ignore_singleton_dim=*/true>(params, false));
}

// ---- memory-efficient attention

// Elements of which head sizes and addresses must be a multiple (minimum_gemm_alignment): one 128-bit load.
int64_t efficient_alignment(const sdp_params& params) {
  const Capability device = device_capability();
  const at::ScalarType dtype = params.query.scalar_type();
  const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
  const bool tensor_cores = device.major >= 8 || (device.major == 7 && half);
  const int64_t without_tensor_cores = device.major >= 8 ? 4 : 1;
  return tensor_cores ? std::max<int64_t>(without_tensor_cores, half ? 8 : 4) : without_tensor_cores;
}

bool efficient_takes_head_dims(const sdp_params& params) {
  const int64_t alignment = efficient_alignment(params);
  const int64_t head_dim = params.query.size(-1);
  const int64_t value_dim = params.value.size(-1);
  return head_dim == params.key.size(-1) && head_dim > 0 && value_dim > 0 && head_dim % alignment == 0 &&
      value_dim % alignment == 0;
}

// Blocks of the caching allocator are aligned, so only the offset into the storage counts.
bool efficient_takes_offsets(const sdp_params& params) {
  if (!sdp::has_only_dense_inputs(params) || device_capability().major < 8) {
    return true;
  }
  const int64_t alignment = efficient_alignment(params);
  const auto aligned = [alignment](const at::Tensor& tensor) {
    return tensor.numel() == 0 || tensor.storage_offset() % alignment == 0;
  };
  return aligned(params.query) && aligned(params.key) && aligned(params.value);
}

bool efficient_accepts(const sdp_params& params) {
  if (!sdp::check_runtime_disabled_mem_efficient(params, false) || !has_fused_shape(params) ||
      !between(device_capability(), kFirstWithEfficient, kLastKnown) || !efficient_takes_head_dims(params) ||
      !efficient_takes_offsets(params)) {
    return false;
  }
  if (sdp::has_for_nested_inputs(params) &&
      (!sdp::check_requires_grad_and_nested(params, false) || !sdp::check_batch_size_nested(params, false) ||
       !sdp::check_for_seq_len_0_nested_tensor(params, false))) {
    return false;
  }
  if (sdp::has_only_dense_inputs(params) &&
      (!sdp::check_nonzero_sequence_lengths_dense(params, false) ||
       !sdp::check_last_dim_stride_equals_1_dense</*ignore_singleton_dim=*/false>(params, false) ||
       !check_heads</*supports_gqa=*/false, /*requires_same_num_heads=*/true>(params))) {
    return false;
  }
  return device_capability().major >= 8 ? has_dtype(params, {at::kHalf, at::kFloat, at::kBFloat16})
                                        : has_dtype(params, {at::kHalf, at::kFloat});
}

// ---- cuDNN

int64_t cudnn_head_dim_limit(const sdp_params& params) {
  const int64_t version = cudnn_version();
  const Capability device = device_capability();
  if (version >= 91100 && device.major == 10 && params.query.size(3) == 192 && params.value.size(3) == 128) {
    return 192;
  }
  return version >= 91000 && device.major == 9 && device.minor == 0 ? 256 : 128;
}

// check_cudnn_tensor_shapes, for cuDNN 9 and later.
bool cudnn_takes_shapes(const sdp_params& params) {
  constexpr int64_t kLargestGridDimension = 65535;
  const int64_t limit = cudnn_head_dim_limit(params);
  const int64_t head_dim = params.query.size(3);
  const int64_t value_dim = params.value.size(3);
  return params.query.size(0) <= kLargestGridDimension && params.query.size(1) <= kLargestGridDimension &&
      head_dim <= limit && value_dim <= limit && head_dim % 8 == 0 && value_dim % 8 == 0 && params.key.size(2) != 1 &&
      (params.dropout == 0.0 || params.query.size(2) != 1);
}

bool cudnn_takes_nested(const sdp_params& params) {
  if (!sdp::has_for_nested_inputs(params)) {
    return true;
  }
  const int major = device_capability().major;
  return c10::utils::check_env("TORCH_CUDNN_SDPA_NESTED_TENSOR_ENABLED") == true && (major == 9 || major == 10);
}

bool cudnn_takes_dropout(const sdp_params& params) {
  const int64_t version = cudnn_version();
  const double sixteenths = params.dropout * 16.0;
  const bool broken_release = params.dropout > 0.0 && version > 91100 && version < 91400;
  return !broken_release && sixteenths == std::floor(sixteenths);
}

bool cudnn_accepts(const sdp_params& params) {
  const at::Context& context = at::globalContext();
  const bool must_be_deterministic = context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly();
  if (cudnn_version() < 90000 || !context.userEnabledCuDNNSDP() || must_be_deterministic ||
      !cudnn_takes_nested(params) || !has_fused_shape(params) || !is_half_precision(params) ||
      !sdp::check_attn_mask_shape(params, false) || !between(device_capability(), kFirstWithBfloat16, kLastKnown) ||
      !cudnn_takes_dropout(params)) {
    return false;
  }
  return !sdp::has_only_dense_inputs(params) ||
      (sdp::check_nonzero_sequence_lengths_dense(params, false) &&
       sdp::check_last_dim_stride_equals_1_dense</*ignore_singleton_dim=*/true>(params, false) &&
       check_heads</*supports_gqa=*/true, /*requires_same_num_heads=*/false>(params) &&
       cudnn_takes_shapes(params));
}

// cuDNN goes first on Hopper and Blackwell since 9.15.1 (check_prefer_cudnn_attention). Once per process, because the
// user may set an order of their own afterwards.
void put_cudnn_first_once() {
  static const bool done = [] {
    const int major = device_capability().major;
    const bool wanted = c10::utils::check_env("TORCH_CUDNN_SDPA_DEPRIORITIZED") != true;
    if (wanted && cudnn_version() > 91500 && (major == 9 || major == 10)) {
      const auto number = [](SDPBackend backend) { return static_cast<int64_t>(backend); };
      set_attention_order(
          {number(SDPBackend::cudnn_attention),
           number(SDPBackend::flash_attention),
           number(SDPBackend::efficient_attention),
           number(SDPBackend::math)});
    }
    return true;
  }();
  (void)done;
}

bool accepts(SDPBackend backend, const sdp_params& params) {
  switch (backend) {
    case SDPBackend::cudnn_attention:
      return cudnn_accepts(params);
    case SDPBackend::flash_attention:
      return flash_accepts(params);
    case SDPBackend::efficient_attention:
      return efficient_accepts(params);
    case SDPBackend::math:
      return at::globalContext().userEnabledMathSDP();
    default:
      return false;
  }
}

}  // namespace

int64_t cudnn_version() { return assumed_cudnn_version.load(); }
void set_cudnn_version(int64_t version) { assumed_cudnn_version.store(version); }

int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                         std::optional<double> /*scale*/, bool enable_gqa) {
  const sdp_params params{query, key, value, attn_mask, dropout_p, is_causal, enable_gqa};
  put_cudnn_first_once();
  for (const SDPBackend backend : attention_order()) {
    if (accepts(backend, params)) return static_cast<int64_t>(backend);
  }
  const Capability device = device_capability();
  TORCH_CHECK(false, "No available kernel: no enabled backend of scaled_dot_product_attention takes query ",
              query.sizes(), ", key ", key.sizes(), " and value ", value.sizes(), " of ", query.scalar_type(),
              attn_mask.has_value() ? " with" : " without", " attn_mask on compute capability ", device.major, ".",
              device.minor);
}

void use_attention_choice() { at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention); }

void register_attention(KernelLibrary& library) {
  library.impl("_fused_sdp_choice", choose_attention);
  register_flash_attention(library);
  register_efficient_attention(library);
  register_cudnn_attention(library);
}
}  // namespace zerokit

extern "C" void zk_set_cudnn_version(int64_t version) { zerokit::set_cudnn_version(version); }

namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &zerokit::choose_attention)
}  // namespace at::native
