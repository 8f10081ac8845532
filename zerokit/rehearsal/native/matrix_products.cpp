// Matrix products and convolutions: their FLOPs, and the memory that cuBLAS takes for them.

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "dispatch.h"
#include "operator_facts.h"

namespace zerokit {
namespace {

using at::Tensor;
using c10::IValue;

std::atomic<double> flops_counted{0}, fp32_flops_counted{0};

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

}  // namespace

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

void count_flops(double flops, bool in_fp32) {
  for (auto* counter : {&flops_counted, &fp32_flops_counted}) {
    if (counter == &fp32_flops_counted && !in_fp32) continue;
    double counted = counter->load();
    while (!counter->compare_exchange_weak(counted, counted + flops)) {
    }
  }
}
double flops_so_far() { return flops_counted.load(); }
double fp32_flops_so_far() { return fp32_flops_counted.load(); }

void use_cublas() {
  // aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize: 32 MiB on compute capabilities 9, 10 and 12, else
  // 2 x 4 MiB + 16 x 8 KiB; one for each handle (a thread has its own) and stream, never freed.
  thread_local std::unordered_map<int, c10::DataPtr> workspaces;
  auto& workspace = workspaces[current_stream()];
  if (workspace.get() != nullptr) return;
  const int64_t kib = 1024;
  const bool is_large = device_capability().major == 9 || device_capability().major == 10 || device_capability().major == 12;
  const int64_t bytes = is_large ? 4096 * 8 * kib : (2 * 4096 + 16 * 8) * kib;
  static const int32_t name = operator_index("cuBLAS workspace");
  RunningOperator running(name);
  workspace = device_allocator()->allocate(bytes);
}

}  // namespace zerokit
