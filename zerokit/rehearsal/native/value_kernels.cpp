// Kernels of the virtual device whose results' size or meaning depends on values.

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>

#include <algorithm>
#include <numeric>

#include "dispatch.h"
#include "kernel_library.h"

namespace zerokit {
namespace {

using at::Tensor;
using c10::ScalarType;

at::Scalar item(const Tensor& tensor) {
  if (is_known(tensor)) return at::_local_scalar_dense(host_view(tensor));
  if (tensor.is_floating_point()) return 1.0;
  if (tensor.scalar_type() == at::kBool) return false;
  return int64_t{0};
}

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

}  // namespace

Tensor select_nonzero(const Tensor& tensor) {
  if (is_computable(tensor)) {
    return computed_on_host(tensor, [](const Tensor& view) { return view.nonzero(); });
  }
  note_made_up("nonzero: every element was taken to be true");
  return new_like(tensor, {tensor.numel(), tensor.dim()}, at::kLong);
}

Tensor select_masked(const Tensor& tensor, const Tensor& mask) {
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

namespace {

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

void register_value_kernels(KernelLibrary& library) {
  library.kernel("_local_scalar_dense", item);
  library.kernel("nonzero", select_nonzero);
  library.kernel("masked_select", select_masked);
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
