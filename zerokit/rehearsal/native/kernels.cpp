// Kernels of the virtual device that cannot go by the boxed fallback: making tensors and moving bytes. (Those whose
// results depend on values: value_kernels.cpp.)

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include "dispatch.h"
#include "kernel_library.h"

namespace zerokit {
namespace {

using at::Tensor;
using c10::Device;
using c10::MemoryFormat;
using c10::ScalarType;

ScalarType given_or_default(std::optional<ScalarType> dtype) {
  return dtype.value_or(c10::get_default_dtype_as_scalartype());
}

// ---- making tensors

Tensor empty(c10::SymIntArrayRef sizes, std::optional<ScalarType> dtype, std::optional<c10::Layout>,
             std::optional<Device> device, std::optional<bool>, std::optional<MemoryFormat> format) {
  if (device) check_device(*device);
  auto tensor = at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), device_allocator(),
                                          c10::DispatchKeySet(c10::DispatchKey::CUDA), given_or_default(dtype), format);
  if (Block* block = block_of(tensor.storage())) {
    describe(*block, static_cast<int8_t>(tensor.scalar_type()), tensor.sizes());
  }
  return tensor;
}

Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides, std::optional<ScalarType> dtype,
                     std::optional<c10::Layout>, std::optional<Device> device, std::optional<bool>) {
  if (device) check_device(*device);
  return device_empty_strided(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), given_or_default(dtype));
}

Tensor& set_storage_and_shape(Tensor& tensor, c10::Storage storage, c10::SymInt offset, c10::SymIntArrayRef sizes,
                              c10::SymIntArrayRef strides) {
  auto* impl = tensor.unsafeGetTensorImpl();
  const auto shape = C10_AS_INTARRAYREF_SLOW(sizes);
  impl->set_storage_keep_dtype(std::move(storage));
  if (strides.empty() && !sizes.empty()) {
    impl->set_sizes_and_strides(shape, at::detail::defaultStrides(shape));
  } else {
    impl->set_sizes_and_strides(shape, C10_AS_INTARRAYREF_SLOW(strides));
  }
  impl->set_storage_offset(offset.expect_int());
  return tensor;
}

Tensor& set_storage(Tensor& tensor, c10::Storage storage) {
  const int64_t elements = static_cast<int64_t>(storage.nbytes() / tensor.itemsize());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_sizes_contiguous({elements});
  impl->set_storage_offset(0);
  return tensor;
}

Tensor& set_tensor(Tensor& tensor, const Tensor& source) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(source.storage());
  impl->set_sizes_and_strides(source.sizes(), source.strides());
  impl->set_storage_offset(source.storage_offset());
  return tensor;
}

Tensor& set_empty(Tensor& tensor) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0,
                                                       device_allocator()->allocate(0), device_allocator(), true);
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(c10::Storage(std::move(storage)));
  impl->set_sizes_contiguous({0});
  return tensor;
}

const Tensor& resize(const Tensor& tensor, c10::SymIntArrayRef sizes, std::optional<MemoryFormat> format) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(sizes));
  if (format && *format != MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  const int64_t bytes = (impl->numel() + impl->storage_offset()) * static_cast<int64_t>(tensor.itemsize());
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (static_cast<int64_t>(storage->nbytes()) < bytes) resize_storage(*storage, bytes);
  return tensor;
}

// ---- moving bytes

void copy_values(const Tensor& target, const Tensor& source) {
  const bool whole = covers_its_storage(target);
  const bool to_small = static_cast<int64_t>(target.storage().nbytes()) < kSmallBytes;
  const bool from_host = source.is_cpu() && is_known(source);
  const bool computed = static_cast<int64_t>(target.storage().nbytes()) <= most_computed(target.scalar_type());
  const bool to_host = target.is_cpu() && is_known(source);
  const bool kept = run_state().compute_everything || to_host || to_small || (computed && (whole || is_known(target)));
  if (kept && (is_computable(source) || from_host || to_host || run_state().compute_everything)) {
    Uncounted uncounted;
    host_view(target).copy_(host_view(source));
    if (whole) mark_known(target);
    return;
  }
  leave_without_values(target);
}

Tensor& copy(Tensor& target, const Tensor& source, bool non_blocking) {
  if (target.numel() == 0) return target;
  TORCH_CHECK(!source.is_meta(), "Cannot copy out of meta tensor; no data!");
  const bool crosses = target.is_cuda() != source.is_cuda();
  const bool same_dtype = target.scalar_type() == source.scalar_type();
  const bool both_contiguous = target.is_contiguous() && source.is_contiguous() && target.sizes() == source.sizes();
  // aten/src/ATen/native/cuda/Copy.cu, copy_requires_temporaries: bytes cross devices only as they are, so that what
  // must be gathered is so on the side where it lies. A copy that blocks converts on the host, another one on the GPU.
  if (crosses && !(same_dtype && both_contiguous)) {
    const bool on_gpu = source.is_cuda();
    const bool converts_here = !same_dtype && non_blocking;
    const bool source_is_gathered = !source.is_contiguous() || target.sizes() != source.sizes();
    const bool scratch = on_gpu ? converts_here || source_is_gathered : converts_here || !target.is_contiguous();
    const bool as_target = on_gpu ? converts_here : !converts_here;
    const int64_t bytes = target.numel() * static_cast<int64_t>((as_target ? target : source).itemsize());
    if (scratch) DeviceScratch converted_or_gathered(bytes);
  }
  const Tensor expanded = source.sizes() == target.sizes() ? source : source.expand(target.sizes());
  copy_values(target, expanded);
  return target;
}

// ---- the CTC loss, for whose choice of a kernel and backward pass torch has no Meta kernels

// Torch's own kernel is taken, also for flat targets of 32 bits, with which cuDNN's may be, and needs a workspace.
bool chooses_library(const Tensor&, const Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t) { return false; }
bool chooses_library_by_tensors(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) { return false; }

// aten/src/ATen/native/cuda/LossCTC.cu: beside the gradient, probabilities of what follows, as many as of what precedes.
Tensor ctc_loss_backward(const Tensor&, const Tensor& log_probs, const Tensor&, at::IntArrayRef, at::IntArrayRef,
                         const Tensor&, const Tensor& log_alpha, int64_t, bool) {
  const DeviceScratch log_beta(log_alpha.numel() * static_cast<int64_t>(log_alpha.itemsize()));
  return device_empty(log_probs.sizes(), log_probs.scalar_type());
}

void record_stream(Tensor& tensor, c10::Stream stream) {
  Block* block = block_of(tensor.storage());
  if (block == nullptr || block->ordinary == nullptr) return;
  record_block_stream(*block, static_cast<int>(stream.id()));
}

}  // namespace

void register_kernels(KernelLibrary& library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("view_as_real", at::native::view_as_real);
  library.impl("view_as_complex", at::native::view_as_complex);
  library.impl("set_.source_Storage_storage_offset", set_storage_and_shape);
  library.impl("set_.source_Storage", set_storage);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("set_", set_empty);
  library.impl("resize_", resize);
  library.kernel("copy_", copy);
  library.impl("record_stream", record_stream);
  library.impl("_use_cudnn_ctc_loss", chooses_library);
  library.impl("_use_cudnn_ctc_loss.Tensor", chooses_library_by_tensors);
  library.impl("_use_miopen_ctc_loss", chooses_library);
  library.impl("_use_miopen_ctc_loss.Tensor", chooses_library_by_tensors);
  library.kernel("_ctc_loss_backward", ctc_loss_backward);
}

}  // namespace zerokit
