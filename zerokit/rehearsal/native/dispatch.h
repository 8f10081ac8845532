// What happens when an operator is called on the virtual device, or on host tensors whose contents are made up.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <c10/util/Exception.h>

#include <string>

#include "blocks.h"

namespace zerokit {

class KernelLibrary;

// ---- tensors of the virtual device
at::Tensor device_empty(c10::IntArrayRef sizes, at::ScalarType dtype);
at::Tensor device_empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType dtype);
at::Tensor device_empty_like(const at::Tensor& tensor);

// The same memory seen by CPU kernels; shares, does not own.
at::Tensor host_view(const at::Tensor& tensor);
// The same shape seen by Meta kernels.
at::Tensor meta_view(const at::Tensor& tensor);

// ---- contents
// False where nobody can say what the tensor holds.
bool is_known(const at::Tensor& tensor);
// True where the value can, and should, be computed: known, and small or of integers.
bool is_computable(const at::Tensor& tensor);
// Bytes of a tensor of that type up to which its values are computed.
int64_t most_computed(at::ScalarType type);
bool covers_its_storage(const at::Tensor& tensor);
void mark_known(const at::Tensor& tensor);
void mark_made_up(const at::Tensor& tensor);
// Gives a small made-up tensor values that scripts survive: 1 for floats (a loss, a norm), 0 for integers, `flag` for
// booleans. Large ones stay without values.
void fill_made_up(const at::Tensor& tensor, bool flag = false);
// For a result that is sized and never computed, or computed of made-up values.
inline void leave_without_values(const at::Tensor& result) {
  fill_made_up(result);
  mark_made_up(result);
}

// What the report says beside its figures, with the calling line.
enum class Note : uint8_t {
  made_up,       // a result that depends on values was chosen by a stated policy
  gap,           // an operator that the rehearsal cannot stand in for; its caller may have caught the error
  other_device,  // a tensor was put on another rank's device, and is counted on this rank's own
};
void note(Note kind, const std::string& what);
inline void note_made_up(const std::string& what) { note(Note::made_up, what); }
// Lines of "kind<tab>what<tab>site<tab>count".
std::string all_notes();
// Raises, as CUDA does, for a device that the rank does not see; notes one that is another rank's.
void check_device(const c10::Device& device);

// torch warns when a kernel replaces another, which is the purpose of this library.
struct Quiet final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};
// Put the virtual device, and the allocator and kernels for host tensors without values, in the place of torch's own.
// Call them once torch is imported, which registers kernels itself.
void take_over_device();
void take_over_host();
// The kernels of kernels.cpp, value_kernels.cpp and fast_kernels.cpp.
void register_kernels(KernelLibrary& library);
void register_value_kernels(KernelLibrary& library);
// nonzero and masked_select by the policies of value_kernels.cpp, for tensors of either device.
at::Tensor select_nonzero(const at::Tensor& tensor);
at::Tensor select_masked(const at::Tensor& tensor, const at::Tensor& mask);
void register_fast_kernels(KernelLibrary& library);

// ---- operators
// The boxed kernel of the virtual device.
void run_on_device(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// With real values: computes what the CPU's kernel of the same operator cannot; false if there is no need.
bool compute_in_float(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments);
// Sizes the results and leaves the values out; for either device.
void run_made_up(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// How many random numbers of the host were not drawn that a real run would have drawn to fill parameters.
int64_t random_elements_skipped();

// ---- the device's properties
struct Capability {
  int major, minor;
};
Capability device_capability();
void set_device_capability(Capability capability);
// Streaming multiprocessors; flash attention splits its work by them.
int device_multiprocessors();
void set_device_multiprocessors(int count);

// ---- FLOPs since the start
void count_flops(double flops, bool in_fp32 = false);
double flops_so_far();
double fp32_flops_so_far();  // of matrix products and convolutions
bool is_matrix_product(int32_t name_index, const std::string& name);
double product_flops(const std::string& name, const std::vector<c10::IValue>& arguments);
// Called before a matrix product: cuBLAS allocates a workspace for every thread and stream that uses it.
void use_cublas();

template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor() && element.toTensor().defined()) visit(element.toTensor());
    }
  }
}

}  // namespace zerokit
