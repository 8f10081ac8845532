#include "dispatch.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

namespace zerokit {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

// ---- views of the same memory

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

template <class Map>
IValue map_tensors(const IValue& value, Map map) {
  if (value.isTensor()) return map(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> mapped;
    for (const Tensor& tensor : value.toTensorVector()) mapped.push_back(map(tensor));
    return mapped;
  }
  if (value.isList()) {
    const auto list = value.toList();
    const auto element = list.elementType();
    if (element->kind() == c10::TypeKind::OptionalType &&
        element->containedType(0)->kind() == c10::TypeKind::TensorType) {
      c10::List<std::optional<Tensor>> mapped;
      for (const IValue& item : value.toListRef()) {
        mapped.push_back(item.isNone() ? std::nullopt : std::optional<Tensor>(map(item.toTensor())));
      }
      return mapped;
    }
  }
  return value;
}

// ---- what the schema says of an operator, looked up once

struct OperatorFacts {
  int32_t name_index = -1;
  bool has_cpu_kernel = false;
  bool draws_without_generator = false;
  bool mixes_devices = false;   // takes host tensors beside device tensors
  bool only_writes = false;     // every result is one of the arguments
  bool overwrites = false;      // reads nothing of what it writes: fills and random numbers
  bool small_result_is_true = false;
  bool is_foreign = false;      // neither torch's nor of a library that has the same operators on CUDA
  int generator = -1;
  std::vector<bool> written;    // by argument
  std::vector<bool> is_out;     // by argument
  std::vector<int> aliased;     // by result: the argument it is, or -1
  std::vector<bool> is_view;    // by result: a view of that argument
};

bool starts_with(const std::string& text, const char* beginning) { return text.rfind(beginning, 0) == 0; }

bool takes_host_tensors(const std::string& name) {
  // x[i] copies i to the device; index_select, of which embeddings are made, and index_add do not.
  static const std::unordered_set<std::string> indexed = {"aten::index", "aten::index_put", "aten::index_put_",
                                                          "aten::_index_put_impl", "aten::_index_put_impl_"};
  static const char* const beginnings[] = {"aten::_unsafe_index", "aten::copy", "aten::_foreach", "aten::_fused",
                                           "aten::_amp_", "aten::set_", "aten::_pin_memory",
                                           "aten::repeat_interleave"};
  for (const char* beginning : beginnings) {
    if (starts_with(name, beginning)) return true;
  }
  return indexed.count(name) > 0;
}

bool is_foreign_operator(const std::string& name) {
  static const std::unordered_set<std::string> known = {
      "aten", "prim", "prims", "rngprims", "quantized", "_quantized", "sparse", "mkl", "mkldnn", "mkldnn_prepacked",
      "c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "fsdp", "inductor", "profiler",
      "torchvision", "torchaudio"};
  return known.count(name.substr(0, name.find("::"))) == 0;
}

OperatorFacts learn(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  OperatorFacts facts;
  facts.is_foreign = is_foreign_operator(schema.name());
  const auto& overload = schema.overload_name();
  facts.name_index = operator_index(overload.empty() ? schema.name() : schema.name() + "." + overload);
  facts.has_cpu_kernel = op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
                         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
                         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  facts.mixes_devices = takes_host_tensors(schema.name());
  facts.small_result_is_true = starts_with(schema.name(), "aten::all") || starts_with(schema.name(), "aten::isfinite") ||
                               starts_with(schema.name(), "aten::eq");
  const auto& arguments = schema.arguments();
  for (size_t index = 0; index < arguments.size(); ++index) {
    const auto* alias = arguments[index].alias_info();
    facts.written.push_back(alias != nullptr && alias->isWrite());
    facts.is_out.push_back(arguments[index].is_out());
    if (arguments[index].name() == "generator") facts.generator = static_cast<int>(index);
  }
  facts.draws_without_generator = op.hasTag(at::Tag::nondeterministic_seeded) && facts.generator < 0;
  facts.only_writes = true;
  for (const auto& result : schema.returns()) {
    const auto* alias = result.alias_info();
    int source = -1;
    for (size_t index = 0; alias != nullptr && index < arguments.size() && source < 0; ++index) {
      const auto* other = arguments[index].alias_info();
      if (other != nullptr && *other == *alias) source = static_cast<int>(index);
    }
    facts.aliased.push_back(source);
    facts.is_view.push_back(source >= 0 && !alias->isWrite());
    if (source < 0 || !alias->isWrite()) facts.only_writes = false;
  }
  const bool fills = schema.name() == "aten::zero_" || schema.name() == "aten::fill_";
  facts.overwrites = facts.only_writes && (fills || facts.generator >= 0);
  return facts;
}

const OperatorFacts& facts_of(const c10::OperatorHandle& op) {
  static auto* known = new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OperatorFacts>>;
  static std::mutex mutex;
  std::lock_guard<std::mutex> guard(mutex);
  auto& entry = (*known)[&op.schema()];
  if (!entry) entry = std::make_unique<OperatorFacts>(learn(op));
  return *entry;
}

// ---- results

// A tensor of the virtual device that holds what `computed`, a host tensor, holds.
Tensor to_device(const Tensor& computed) {
  auto result = device_empty_strided(computed.sizes(), computed.strides(), computed.scalar_type());
  if (computed.numel() > 0) {
    const char* source = static_cast<const char*>(computed.storage().data()) +
                         computed.storage_offset() * static_cast<int64_t>(computed.itemsize());
    const int64_t available = static_cast<int64_t>(computed.storage().nbytes()) -
                              computed.storage_offset() * static_cast<int64_t>(computed.itemsize());
    std::memcpy(const_cast<void*>(result.storage().data()), source,
                std::min(available, static_cast<int64_t>(result.storage().nbytes())));
    mark_known(result);
  }
  return result;
}

// Makes `tensor` the shape of `wanted`, in a larger storage if need be.
void take_shape(const Tensor& tensor, const Tensor& wanted) {
  if (tensor.sizes() == wanted.sizes()) return;
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(wanted.sizes(), wanted.strides());
  const auto bytes = static_cast<int64_t>(at::detail::computeStorageNbytes(
      wanted.sizes(), wanted.strides(), tensor.itemsize(), tensor.storage_offset()));
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (static_cast<int64_t>(storage->nbytes()) < bytes) resize_storage(*storage, bytes);
}

bool involves_device(const std::vector<IValue>& arguments, bool* host_tensor_too) {
  bool device_tensor = false, device_asked = false, device_is_ours = false;
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const Tensor& tensor) {
      if (tensor.is_cuda()) {
        device_tensor = true;
      } else if (tensor.is_cpu() && tensor.dim() > 0) {
        *host_tensor_too = true;
      }
    });
    if (argument.isDevice()) {
      device_asked = true;
      device_is_ours = argument.toDevice().is_cuda();
      check_device(argument.toDevice());
    }
  }
  *host_tensor_too = *host_tensor_too && device_tensor;
  return device_asked ? device_is_ours : device_tensor;
}

std::vector<IValue> arguments_for(const OperatorFacts& facts, const std::vector<IValue>& arguments,
                                  const c10::FunctionSchema& schema, c10::DeviceType device, const IValue& generator,
                                  Tensor (*view)(const Tensor&)) {
  std::vector<IValue> mapped;
  mapped.reserve(arguments.size());
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (arguments[index].isDevice()) {
      mapped.emplace_back(c10::Device(device));
    } else if (static_cast<int>(index) == facts.generator) {
      mapped.emplace_back(generator);
    } else if (schema.arguments()[index].name() == "pin_memory") {
      mapped.emplace_back();
    } else {
      mapped.emplace_back(map_tensors(arguments[index], view));
    }
  }
  return mapped;
}

// Random numbers of the virtual device: a stream of their own, so that the host's stays what it would be.
IValue device_randomness() {
  static auto* generator = new at::Generator(at::make_generator<at::CPUGeneratorImpl>(20240229));
  return *generator;
}

// ---- computing for real

// Whether values on the device would take pages for nothing, as no operator computes with so many.
bool is_too_large(const Tensor& tensor) {
  return tensor.is_cuda() && !run_state().compute_everything &&
         static_cast<int64_t>(tensor.storage().nbytes()) > most_computed(tensor.scalar_type());
}

void compute(const c10::OperatorHandle& op, const OperatorFacts& facts, const std::vector<IValue>& arguments,
             bool on_device, Stack* stack) {
  Stack inner = arguments_for(facts, arguments, op.schema(), c10::kCPU, device_randomness(), &host_view);
  const std::vector<IValue> views = inner;
  {
    // What CPU kernels allocate inside is not what the GPU's would.
    Uncounted uncounted;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &inner);
  }
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (!facts.written[index] || !arguments[index].isTensor() || !arguments[index].toTensor().defined()) continue;
    const auto& tensor = arguments[index].toTensor();
    const auto& view = views[index].toTensor();
    if (tensor.is_cuda() && (tensor.sizes() != view.sizes() || tensor.storage().data() != view.storage().data())) {
      take_shape(tensor, view);
      if (is_too_large(tensor)) {
        mark_made_up(tensor);
        continue;
      }
      if (view.numel() > 0) {
        std::memcpy(const_cast<void*>(tensor.storage().data()), view.storage().data(),
                    std::min(tensor.storage().nbytes(), view.storage().nbytes()));
      }
    }
    if (covers_its_storage(tensor)) mark_known(tensor);
  }
  for (size_t result = 0; result < facts.aliased.size(); ++result) {
    if (facts.aliased[result] >= 0 && !facts.is_view[result]) {
      stack->push_back(arguments[facts.aliased[result]]);
    } else {
      stack->push_back(map_tensors(inner[result], [&](const Tensor& tensor) {
        return tensor.defined() && on_device ? to_device(tensor) : tensor;
      }));
    }
  }
}

bool can_compute(const OperatorFacts& facts, const std::vector<IValue>& arguments) {
  if (run_state().compute_everything) return true;
  if (!facts.has_cpu_kernel) return false;
  if (facts.draws_without_generator) return false;
  const bool overwrites = facts.overwrites;
  bool computable = true;
  for (size_t index = 0; index < arguments.size() && computable; ++index) {
    for_each_tensor(arguments[index], [&](const Tensor& tensor) {
      if (!tensor.has_storage()) {
        computable = false;
      } else if (facts.is_out[index] || (overwrites && facts.written[index])) {
        const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
        if (bytes >= kSmallBytes &&
            (is_too_large(tensor) || tensor.is_floating_point() || !covers_its_storage(tensor))) {
          computable = false;
        }
      } else if (!is_computable(tensor)) {
        computable = false;
      }
    });
  }
  return computable;
}

// ---- leaving values out

void forget_written(const OperatorFacts& facts, const std::vector<IValue>& arguments) {
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (!facts.written[index]) continue;
    for_each_tensor(arguments[index], [&](const Tensor& tensor) {
      if (facts.is_out[index]) fill_made_up(tensor, facts.small_result_is_true);
      mark_made_up(tensor);
    });
  }
}

bool outputs_are_sized(const OperatorFacts& facts, const std::vector<IValue>& arguments) {
  bool sized = facts.only_writes;
  for (size_t index = 0; index < arguments.size() && sized; ++index) {
    if (!facts.is_out[index]) continue;
    for_each_tensor(arguments[index], [&](const Tensor& tensor) {
      if (tensor.numel() == 0) sized = false;
    });
  }
  return sized;
}

// What the dispatcher of a CUDA build says (aten/src/ATen/core/dispatch/OperatorEntry.cpp, reportError).
[[noreturn]] void report_no_cuda_kernel(const c10::OperatorHandle& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "Could not run '", toString(op.operator_name()),
                              "' with arguments from the 'CUDA' backend. No kernel is registered for it there.");
}

[[noreturn]] void report_gap(const c10::OperatorHandle& op) {
  note(Note::gap, "the operator " + toString(op.operator_name()));
  // The worker looks for these words and adds the calling line.
  TORCH_CHECK_NOT_IMPLEMENTED(false, "zerokit cannot stand in for the operator ", toString(op.operator_name()),
                              ": it has no rule for the shape of its result (no Meta kernel)");
}

void size_results(const c10::OperatorHandle& op, const OperatorFacts& facts, const std::vector<IValue>& arguments,
                  bool on_device, Stack* stack) {
  Stack inner = arguments_for(facts, arguments, op.schema(), c10::kMeta, IValue(), &meta_view);
  const std::vector<IValue> views = inner;
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &inner);
  } catch (const c10::NotImplementedError&) {
    report_gap(op);
  }
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (facts.written[index] && arguments[index].isTensor() && arguments[index].toTensor().defined()) {
      take_shape(arguments[index].toTensor(), views[index].toTensor());
    }
  }
  for (size_t result = 0; result < facts.aliased.size(); ++result) {
    const int source = facts.aliased[result];
    if (source >= 0 && !facts.is_view[result]) {
      stack->push_back(arguments[source]);
      continue;
    }
    const bool is_view = source >= 0 && arguments[source].isTensor();
    stack->push_back(map_tensors(inner[result], [&](const Tensor& shape) -> Tensor {
      if (!shape.defined() || !shape.is_meta()) return shape;
      if (is_view) {
        return at::native::as_strided_tensorimpl(arguments[source].toTensor(), shape.sizes(), shape.strides(),
                                                 shape.storage_offset());
      }
      Tensor made;
      if (on_device) {
        made = device_empty_strided(shape.sizes(), shape.strides(), shape.scalar_type());
      } else {
        made = at::detail::empty_strided_generic(shape.sizes(), shape.strides(), pageable_allocator(),
                                                 c10::DispatchKeySet(c10::DispatchKey::CPU), shape.scalar_type());
      }
      fill_made_up(made, facts.small_result_is_true);
      mark_made_up(made);
      return made;
    }));
  }
}

void leave_values_out(const c10::OperatorHandle& op, const OperatorFacts& facts, const std::vector<IValue>& arguments,
                      bool on_device, Stack* stack) {
  if (!outputs_are_sized(facts, arguments)) {
    size_results(op, facts, arguments, on_device, stack);
  } else {
    for (const int source : facts.aliased) stack->push_back(arguments[source]);
  }
  forget_written(facts, arguments);
}

// An operator of the script's or of a package, that no CUDA kernel is registered for. If its package says what the
// result looks like, this installation may lack the kernel that the cluster's has; a kernel for the CPU is no evidence.
void run_foreign(const c10::OperatorHandle& op, const OperatorFacts& facts, const std::vector<IValue>& arguments,
                 Stack* stack) {
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) report_no_cuda_kernel(op);
  try {
    size_results(op, facts, arguments, true, stack);
  } catch (const std::exception&) {
    // torch.library.custom_op registers a Meta kernel that fails where its author has given none.
    if (op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) report_no_cuda_kernel(op);
    throw;
  }
  forget_written(facts, arguments);
  note_made_up("result of " + op.schema().name() + ", sized without a CUDA kernel");
}

std::atomic<double> flops_counted{0};
Capability capability{9, 0};
int multiprocessors = 132;

// ---- FLOPs: two for each multiply-add, as torch.utils.flop_counter counts them

// Elements of one channel of a convolution's output; `stride` and so on are the arguments from the fourth on.
double convolved_elements(const Tensor& input, const Tensor& weight, const std::vector<IValue>& arguments, size_t stride) {
  const auto strides = arguments[stride].toIntVector();
  const auto paddings = arguments[stride + 1].toIntVector();
  const auto dilations = arguments[stride + 2].toIntVector();
  const int64_t spatial = weight.dim() - 2;
  const auto of = [](const std::vector<int64_t>& values, int64_t index) {
    return values.size() == 1 ? values[0] : values[index];  // one number stands for all dimensions
  };
  double elements = 1;
  for (int64_t index = 0; index < spatial; ++index) {
    const int64_t extent = of(dilations, index) * (weight.size(index + 2) - 1) + 1;
    const int64_t room = input.size(input.dim() - spatial + index) + 2 * of(paddings, index) - extent;
    elements *= static_cast<double>(room / of(strides, index) + 1);
  }
  return elements;
}

// Every element of the smaller side - the output, or the input of a transposed convolution - meets one filter.
double convolution_flops(const std::string& name, const std::vector<IValue>& arguments) {
  if (name == "aten::convolution") {
    const Tensor &input = arguments[0].toTensor(), &weight = arguments[1].toTensor();
    const double batch = input.dim() == weight.dim() ? static_cast<double>(input.size(0)) : 1.0;
    const bool transposed = arguments[6].toBool();
    return transposed ? 2.0 * input.numel() * weight.numel() / weight.size(0)
                      : 2.0 * batch * convolved_elements(input, weight, arguments, 3) * weight.numel();
  }
  const Tensor &gradient = arguments[0].toTensor(), &input = arguments[1].toTensor(), &weight = arguments[2].toTensor();
  const bool transposed = arguments[7].toBool();
  const double once = transposed ? 2.0 * input.numel() * weight.numel() / weight.size(0)
                                 : 2.0 * gradient.numel() * weight.numel() / weight.size(0);
  const auto wanted = arguments[10].toBoolList();
  return once * (wanted[0] + wanted[1]);
}

double product_flops(const std::string& name, const std::vector<IValue>& arguments) {
  const auto tensor = [&](size_t index) -> const Tensor& { return arguments[index].toTensor(); };
  if (starts_with(name, "aten::convolution")) return convolution_flops(name, arguments);
  if (name == "aten::mm" || name == "aten::bmm" || name == "aten::_scaled_mm") {
    return 2.0 * tensor(0).numel() * tensor(1).size(-1);
  }
  if (name == "aten::addmm" || name == "aten::baddbmm" || name == "aten::_addmm_activation") {
    return 2.0 * tensor(1).numel() * tensor(2).size(-1);
  }
  if (name == "aten::_grouped_mm") {
    // Rows of the first, columns of the second or what is summed over are cut into groups. Only where the columns are
    // does a matrix of the first meet no more than its own group's share of them.
    const bool columns_are_grouped = tensor(0).dim() == 3 && tensor(1).dim() == 2;
    return 2.0 * tensor(0).numel() * tensor(1).size(-1) / (columns_are_grouped ? tensor(0).size(0) : 1);
  }
  return 0;
}

bool is_matrix_product(int32_t name_index, const std::string& name) {
  static auto* known = new std::unordered_map<int32_t, bool>;
  static std::mutex mutex;
  std::lock_guard<std::mutex> guard(mutex);
  auto [entry, is_new] = known->try_emplace(name_index, false);
  if (is_new) {
    static const std::unordered_set<std::string> products = {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm",
                                                             "aten::_addmm_activation", "aten::_grouped_mm",
                                                             "aten::_scaled_mm", "aten::convolution",
                                                             "aten::convolution_backward"};
    entry->second = products.count(name) != 0;
  }
  return entry->second;
}

// What the CPU's kernel cannot do, which the GPU's may: "not implemented for 'Half'", a check that names the CPU, or
// "expected scalar type Float but found Half". Larger tensors get their sizes without any of these.
bool is_of_the_cpu_kernel(const c10::Error& error, bool on_device) {
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr) return true;
  const auto says = [&](const char* words) { return error.msg().find(words) != std::string::npos; };
  return on_device && (says("CPU") || says("expected scalar type"));
}

void check_devices(const OperatorFacts& facts, const c10::OperatorHandle& op, bool host_tensor_too) {
  TORCH_CHECK(!host_tensor_too || facts.mixes_devices,
              "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (when ",
              "running ", op.schema().name(), ")");
}

}  // namespace

// ---- tensors

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

// ---- contents

bool is_known(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return false;
  if (static_cast<int64_t>(tensor.storage().nbytes()) < kSmallBytes || run_state().compute_everything) return true;
  const Block* block = block_of(tensor.storage());
  return block == nullptr || block->contents != Contents::made_up;
}

bool is_computable(const at::Tensor& tensor) {
  if (run_state().compute_everything) return tensor.has_storage();
  if (!is_known(tensor)) return false;
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  return bytes < kSmallBytes || bytes <= most_computed(tensor.scalar_type());
}

int64_t most_computed(at::ScalarType type) {
  if (!at::isIntegralType(type, /*includeBool=*/true)) return kSmallBytes - 1;
  return type == at::kByte || type == at::kChar ? kComputedOctets : kComputedBytes;
}

bool covers_its_storage(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.itemsize()) == static_cast<int64_t>(tensor.storage().nbytes());
}

void mark_known(const at::Tensor& tensor) {
  Block* block = block_of(tensor.storage());
  if (block != nullptr && block->contents == Contents::made_up) block->contents = Contents::known;
}

void mark_made_up(const at::Tensor& tensor) {
  if (static_cast<int64_t>(tensor.storage().nbytes()) < kSmallBytes) return;
  Block* block = block_of(tensor.storage());
  if (block == nullptr) return;
  // A made-up slice of host memory takes nothing from the data around it.
  const bool is_slice = tensor.is_cpu() && !covers_its_storage(tensor);
  if (is_slice && block->contents != Contents::made_up && !is_still_untouched(*block)) return;
  forget_contents(*block);
}

void fill_made_up(const at::Tensor& tensor, bool flag) {
  if (tensor.numel() == 0 || static_cast<int64_t>(tensor.storage().nbytes()) >= kSmallBytes) return;
  Uncounted uncounted;
  c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset);
  auto view = tensor.is_cuda() ? host_view(tensor) : tensor;
  if (tensor.is_floating_point() || tensor.is_complex()) {
    view.fill_(1);
  } else if (tensor.scalar_type() == at::kBool) {
    view.fill_(flag);
  } else {
    view.fill_(0);
  }
}

namespace {
std::mutex notes_mutex;
std::map<std::tuple<Note, std::string, int32_t>, int64_t> notes;
}  // namespace

void note(Note kind, const std::string& what) {
  const int32_t site = calling_line();
  std::lock_guard<std::mutex> guard(notes_mutex);
  ++notes[{kind, what, site}];
}

std::string all_notes() {
  std::lock_guard<std::mutex> guard(notes_mutex);
  std::string lines;
  for (const auto& [key, count] : notes) {
    const auto& [kind, what, site] = key;
    lines += std::to_string(static_cast<int>(kind)) + "\t" + what + "\t" + std::to_string(site) + "\t" +
             std::to_string(count) + "\n";
  }
  return lines;
}

void check_device(const c10::Device& device) {
  if (!device.is_cuda() || !device.has_index() || device == own_device()) return;
  TORCH_CHECK(device.index() < visible_devices(), "CUDA error: invalid device ordinal (", device, " of ",
              static_cast<int>(visible_devices()), " devices, counted from 0)");
  note(Note::other_device, device.str());
}

// ---- operators

void run_on_device(const c10::OperatorHandle& op, Stack* stack) {
  const auto& facts = facts_of(op);
  const auto& schema = op.schema();
  RunningOperator running(facts.name_index);
  std::vector<IValue> arguments(stack->end() - static_cast<int64_t>(schema.arguments().size()), stack->end());
  torch::jit::drop(*stack, schema.arguments().size());
  bool host_tensor_too = false;
  const bool on_device = involves_device(arguments, &host_tensor_too);
  check_devices(facts, op, host_tensor_too);
  if (is_matrix_product(facts.name_index, schema.name())) {
    if (!starts_with(schema.name(), "aten::convolution")) use_cublas();
    count_flops(product_flops(schema.name(), arguments));
  }
  if (run_state().compute_everything && compute_in_float(op, arguments)) {
    stack->push_back(arguments.back());
    return;
  }
  if (facts.is_foreign && !run_state().compute_everything) {
    run_foreign(op, facts, arguments, stack);
    return;
  }
  if (can_compute(facts, arguments)) {
    try {
      compute(op, facts, arguments, on_device, stack);
      return;
    } catch (const c10::Error& error) {
      // No CPU kernel for this dtype, layout or mix of dtypes: sizes will do, but not where values are wanted.
      if (run_state().compute_everything || !is_of_the_cpu_kernel(error, on_device)) throw;
    }
  }
  leave_values_out(op, facts, arguments, on_device, stack);
}

void run_made_up(const c10::OperatorHandle& op, Stack* stack) {
  const auto& facts = facts_of(op);
  const size_t count = op.schema().arguments().size();
  RunningOperator running(facts.name_index);
  std::vector<IValue> arguments(stack->end() - static_cast<int64_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  leave_values_out(op, facts, arguments, false, stack);
}

// ---- the device

Capability device_capability() { return capability; }
void set_device_capability(Capability wanted) { capability = wanted; }

int device_multiprocessors() { return multiprocessors; }
void set_device_multiprocessors(int count) { multiprocessors = count; }

void count_flops(double flops) {
  double counted = flops_counted.load();
  while (!flops_counted.compare_exchange_weak(counted, counted + flops)) {
  }
}
double flops_so_far() { return flops_counted.load(); }

void use_cublas() {
  // aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize: 32 MiB on compute capabilities 9, 10 and 12, else
  // 2 x 4 MiB + 16 x 8 KiB; one for each handle (a thread has its own) and stream, never freed.
  thread_local std::unordered_map<int, c10::DataPtr> workspaces;
  auto& workspace = workspaces[current_stream()];
  if (workspace.get() != nullptr) return;
  const int64_t kib = 1024;
  const bool is_large = capability.major == 9 || capability.major == 10 || capability.major == 12;
  const int64_t bytes = is_large ? 4096 * 8 * kib : (2 * 4096 + 16 * 8) * kib;
  static const int32_t name = operator_index("cuBLAS workspace");
  RunningOperator running(name);
  workspace = device_allocator()->allocate(bytes);
}

}  // namespace zerokit
