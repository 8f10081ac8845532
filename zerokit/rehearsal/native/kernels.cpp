// Kernels of the virtual device that cannot go by the boxed fallback: making tensors, moving bytes, and results whose
// size or meaning depends on values.

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include <algorithm>
#include <numeric>

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
  fill_made_up(target);
  mark_made_up(target);
}

Tensor& copy(Tensor& target, const Tensor& source, bool) {
  if (target.numel() == 0) return target;
  TORCH_CHECK(!source.is_meta(), "Cannot copy out of meta tensor; no data!");
  const bool crosses = target.is_cuda() != source.is_cuda();
  const bool same_dtype = target.scalar_type() == source.scalar_type();
  const bool both_contiguous = target.is_contiguous() && source.is_contiguous() && target.sizes() == source.sizes();
  // aten/src/ATen/native/cuda/Copy.cu, copy_requires_temporaries: bytes cross devices only as they are, so that what
  // must be converted or gathered is so on the side where it lies.
  if (crosses && !(same_dtype && both_contiguous)) {
    const int64_t bytes = target.numel() * static_cast<int64_t>(target.itemsize());
    const bool source_is_converted = !same_dtype || !source.is_contiguous() || target.sizes() != source.sizes();
    if (source.is_cuda() && source_is_converted) DeviceScratch converted(bytes);
    if (target.is_cuda() && !target.is_contiguous()) DeviceScratch gathered(bytes);
  }
  const Tensor expanded = source.sizes() == target.sizes() ? source : source.expand(target.sizes());
  copy_values(target, expanded);
  return target;
}

at::Scalar item(const Tensor& tensor) {
  if (is_known(tensor)) return at::_local_scalar_dense(host_view(tensor));
  if (tensor.is_floating_point()) return 1.0;
  if (tensor.scalar_type() == at::kBool) return false;
  return int64_t{0};
}

void record_stream(Tensor& tensor, c10::Stream stream) {
  Block* block = block_of(tensor.storage());
  if (block == nullptr || block->ordinary == nullptr) return;
  record_block_stream(*block, static_cast<int>(stream.id()));
}

// ---- results that depend on values

bool both_computable(const Tensor& left, const Tensor& right) { return is_computable(left) && is_computable(right); }

// `computed` (of the host) where the result belongs.
Tensor placed(const Tensor& computed, bool on_device) {
  if (!on_device) return computed;
  auto result = device_empty(computed.sizes(), computed.scalar_type());
  Uncounted uncounted;
  host_view(result).copy_(computed);
  mark_known(result);
  return result;
}

Tensor new_like(const Tensor& tensor, c10::IntArrayRef sizes, ScalarType dtype) {
  if (tensor.is_cuda()) return device_empty(sizes, dtype);
  return at::empty(sizes, tensor.options().dtype(dtype));
}

// Runs `compute` on host views without counting what the CPU kernel allocates.
template <class Compute>
Tensor computed_on_host(const Tensor& tensor, Compute compute) {
  Tensor result;
  {
    Uncounted uncounted;
    c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset);
    result = compute(host_view(tensor));
  }
  return placed(result, tensor.is_cuda());
}

Tensor nonzero_of(const Tensor& tensor) {
  if (is_computable(tensor)) {
    return computed_on_host(tensor, [](const Tensor& view) { return view.nonzero(); });
  }
  note_made_up("nonzero: every element was taken to be true");
  return new_like(tensor, {tensor.numel(), tensor.dim()}, at::kLong);
}

Tensor masked_selection(const Tensor& tensor, const Tensor& mask) {
  if (run_state().compute_everything || both_computable(tensor, mask)) {
    const Tensor host_mask = host_view(mask);
    return computed_on_host(tensor, [&](const Tensor& view) { return view.masked_select(host_mask); });
  }
  int64_t selected = 0;
  if (is_computable(mask)) {
    Uncounted uncounted;
    const auto shape = at::infer_size(tensor.sizes(), mask.sizes());
    selected = host_view(mask).expand(shape).sum().item<int64_t>();
  } else {
    note_made_up("masked_select: every element was taken to be selected");
    selected = std::max(tensor.numel(), mask.numel());
  }
  auto result = new_like(tensor, {selected}, tensor.scalar_type());
  mark_made_up(result);
  return result;
}

bool equal(const Tensor& left, const Tensor& right) {
  if (left.sizes() != right.sizes()) return false;
  if (both_computable(left, right)) return at::equal(host_view(left), host_view(right));
  return true;
}

// Fills `indices` along `dim` of size `choices`, so that every choice is taken equally often: index j of row r is
// (r * k + j) modulo the number of choices.
void fill_round_robin(const Tensor& indices, int64_t dim, int64_t choices) {
  if (static_cast<int64_t>(indices.storage().nbytes()) > kComputedBytes || indices.numel() == 0) return;
  Uncounted uncounted;
  const int64_t chosen = indices.size(dim);
  const auto host_options = at::TensorOptions().dtype(at::kLong).device(at::kCPU);
  auto values = at::empty({indices.numel()}, host_options);
  int64_t choice = 0;
  auto* const begin = values.mutable_data_ptr<int64_t>();
  std::generate(begin, begin + values.numel(), [&] {
    const int64_t current = choice;
    choice = current + 1 < choices ? current + 1 : 0;
    return current;
  });
  auto shape = indices.sizes().vec();
  std::swap(shape[dim], shape.back());
  TORCH_INTERNAL_ASSERT(shape.back() == chosen);
  host_view(indices).copy_(values.view(shape).transpose(dim, -1));
  mark_known(indices);
}

constexpr char kChosenInTurn[] =
    "topk: choices in turn, each equally often (in a mixture of experts: balanced routing)";

// The `k` largest of each row. Scores that parameters made are alike, and among equals each has its turn: row r begins
// to look at r * k.
std::tuple<Tensor, Tensor> choose_in_turn(const Tensor& scores, int64_t k, int64_t axis, bool largest) {
  const int64_t choices = scores.size(axis);
  const auto rows = scores.movedim(axis, -1).reshape({-1, choices});
  const auto host_options = at::TensorOptions().dtype(at::kLong).device(at::kCPU);
  const auto begins = at::arange(rows.size(0), host_options).mul_(k).unsqueeze(1);
  const auto turned = begins.add(at::arange(choices, host_options)).remainder_(choices);
  const auto [best, places] = rows.gather(1, turned).sort(/*stable=*/true, 1, largest);
  if (k > 0 && k < choices && best.select(1, k - 1).eq(best.select(1, k)).any().item().toBool()) {
    note_made_up(kChosenInTurn);
  }
  auto shape = scores.movedim(axis, -1).sizes().vec();
  shape.back() = k;
  const auto indices = turned.gather(1, places.narrow(1, 0, k));
  return {best.narrow(1, 0, k).reshape(shape).movedim(-1, axis), indices.reshape(shape).movedim(-1, axis)};
}

bool may_be_alike(const Tensor& tensor) {
  return !run_state().compute_everything && tensor.is_floating_point() && tensor.numel() > 0 && tensor.dim() > 0;
}

// As topk with one choice: of an expert, a token or a class.
Tensor& argmax_out(const Tensor& tensor, std::optional<int64_t> dim, bool keepdim, Tensor& result) {
  at::native::resize_output(result, meta_view(tensor).argmax(dim, keepdim).sizes());
  if (result.numel() == 0) return result;
  Uncounted uncounted;
  const bool computable = is_computable(tensor);
  if (computable && !(dim.has_value() && may_be_alike(tensor))) {
    host_view(result).copy_(host_view(tensor).argmax(dim, keepdim));
    mark_known(result);
  } else if (!dim.has_value() || tensor.dim() == 0) {
    fill_made_up(result);
  } else {
    const int64_t axis = at::maybe_wrap_dim(*dim, tensor.dim());
    const auto kept = keepdim ? result : result.unsqueeze(axis);
    if (computable) {
      host_view(kept).copy_(std::get<1>(choose_in_turn(host_view(tensor), 1, axis, true)));
      mark_known(result);
    } else {
      fill_round_robin(kept, axis, tensor.size(axis));
      note_made_up("argmax: choices in turn, each equally often");
    }
  }
  return result;
}

std::tuple<Tensor&, Tensor&> topk_out(const Tensor& tensor, int64_t k, int64_t dim, bool largest, bool sorted,
                                      Tensor& values, Tensor& indices) {
  if (is_computable(tensor)) {
    Uncounted uncounted;
    auto [top, where] =
        may_be_alike(tensor)
            ? choose_in_turn(host_view(tensor), k, at::maybe_wrap_dim(dim, tensor.dim()), largest)
            : host_view(tensor).topk(k, dim, largest, sorted);
    at::native::resize_output(values, top.sizes());
    at::native::resize_output(indices, where.sizes());
    host_view(values).copy_(top);
    host_view(indices).copy_(where);
    mark_known(values);
    mark_known(indices);
    return {values, indices};
  }
  auto shape = tensor.sizes().vec();
  const int64_t axis = tensor.dim() == 0 ? 0 : at::maybe_wrap_dim(dim, tensor.dim());
  if (!shape.empty()) shape[axis] = k;
  at::native::resize_output(values, shape);
  at::native::resize_output(indices, shape);
  fill_made_up(values);
  if (!shape.empty()) fill_round_robin(indices, axis, tensor.size(axis));
  note_made_up(kChosenInTurn);
  return {values, indices};
}

// The order that sorting made-up values gives: as they stand.
std::tuple<Tensor&, Tensor&> sort_out(const Tensor& tensor, std::optional<bool> stable, int64_t dim, bool descending,
                                      Tensor& values, Tensor& indices) {
  at::native::resize_output(values, tensor.sizes());
  at::native::resize_output(indices, tensor.sizes());
  if (tensor.numel() == 0) return {values, indices};
  Uncounted uncounted;
  if (is_computable(tensor)) {
    auto [sorted, order] = host_view(tensor).sort(stable, dim, descending);
    host_view(values).copy_(sorted);
    host_view(indices).copy_(order);
    mark_known(values);
    mark_known(indices);
    return {values, indices};
  }
  fill_made_up(values);
  if (static_cast<int64_t>(indices.storage().nbytes()) <= kComputedBytes && tensor.dim() > 0) {
    const int64_t axis = at::maybe_wrap_dim(dim, tensor.dim());
    std::vector<int64_t> shape(tensor.dim(), 1);
    shape[axis] = tensor.size(axis);
    const auto host_options = at::TensorOptions().dtype(at::kLong).device(at::kCPU);
    host_view(indices).copy_(at::arange(tensor.size(axis), host_options).view(shape).expand(tensor.sizes()));
    mark_known(indices);
  }
  return {values, indices};
}

Tensor multinomial(const Tensor& weights, c10::SymInt samples, bool replacement, std::optional<at::Generator>) {
  if (run_state().compute_everything) {
    return computed_on_host(weights, [&](const Tensor& view) {
      return at::multinomial(view, samples.expect_int(), replacement);
    });
  }
  auto shape = weights.sizes().vec();
  shape.back() = samples.expect_int();
  auto result = device_empty(shape, at::kLong);
  fill_round_robin(result, result.dim() - 1, weights.size(-1));
  note_made_up("multinomial: samples in turn");
  return result;
}

// CUDA counts integers, the CPU kernel does not.
Tensor histc(const Tensor& tensor, int64_t bins, const at::Scalar& low, const at::Scalar& high) {
  if (is_computable(tensor)) {
    return computed_on_host(tensor, [&](const Tensor& view) {
      if (view.is_floating_point()) return at::histc(view, bins, low, high);
      return at::histc(view.to(at::kDouble), bins, low, high).to(view.scalar_type());
    });
  }
  auto result = device_empty({bins}, tensor.scalar_type());
  fill_made_up(result);
  return result;
}

void assert_async(const Tensor&) {}
void assert_async_with_message(const Tensor&, c10::string_view) {}

}  // namespace

at::Tensor select_nonzero(const at::Tensor& tensor) { return nonzero_of(tensor); }
at::Tensor select_masked(const at::Tensor& tensor, const at::Tensor& mask) { return masked_selection(tensor, mask); }

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
  library.kernel("_local_scalar_dense", item);
  library.impl("record_stream", record_stream);
  library.kernel("nonzero", nonzero_of);
  library.kernel("masked_select", masked_selection);
  library.kernel("equal", equal);
  library.kernel("topk.values", topk_out);
  library.kernel("argmax.out", argmax_out);
  library.kernel("sort.values_stable", sort_out);
  library.kernel("multinomial", multinomial);
  library.kernel("histc", histc);
  library.impl("_assert_async", assert_async);
  library.impl("_assert_async.msg", assert_async_with_message);
}

}  // namespace zerokit
