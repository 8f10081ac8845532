// Tensors of the virtual device, and their memory as other devices' kernels see it.

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/CPUAllocator.h>

#include "dispatch.h"

namespace zerokit {
namespace {

using at::Tensor;

Tensor alias_as(const Tensor& tensor, c10::DataPtr memory, c10::Allocator* allocator, c10::DispatchKey key) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                       tensor.storage().nbytes(), std::move(memory), allocator, true);
  auto alias = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), c10::DispatchKeySet(key),
                                                        tensor.dtype());
  auto* impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  impl->set_storage_offset(tensor.storage_offset());
  if (tensor.is_conj()) alias._set_conj(true);
  if (tensor.is_neg()) alias._set_neg(true);
  return alias;
}

}  // namespace

at::Tensor device_empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType dtype) {
  auto tensor = at::detail::empty_strided_generic(sizes, strides, device_allocator(),
                                                  c10::DispatchKeySet(c10::DispatchKey::CUDA), dtype);
  if (Block* block = block_of(tensor.storage())) describe(*block, static_cast<int8_t>(dtype), sizes);
  return tensor;
}

at::Tensor device_empty(c10::IntArrayRef sizes, at::ScalarType dtype) {
  auto tensor = at::detail::empty_generic(sizes, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                          dtype, std::nullopt);
  if (Block* block = block_of(tensor.storage())) describe(*block, static_cast<int8_t>(dtype), sizes);
  return tensor;
}

at::Tensor device_empty_like(const at::Tensor& tensor) { return at::empty_like(tensor); }

at::Tensor host_view(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  return alias_as(tensor, {const_cast<void*>(tensor.storage().data()), c10::Device(c10::kCPU)}, c10::GetCPUAllocator(),
                  c10::DispatchKey::CPU);
}

at::Tensor meta_view(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta()) return tensor;
  return alias_as(tensor, {nullptr, c10::Device(c10::kMeta)}, c10::GetAllocator(c10::kMeta), c10::DispatchKey::Meta);
}

}  // namespace zerokit
