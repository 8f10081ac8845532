#include "operator_facts.h"

#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "run_state.h"

namespace zerokit {
namespace {

bool takes_host_tensors(const std::string& name) {
  // x[i] copies i to the device; index_select, of which embeddings are made, and index_add do not.
  static const std::unordered_set<std::string> indexed = {"aten::index", "aten::index_put", "aten::index_put_",
                                                          "aten::_index_put_impl", "aten::_index_put_impl_"};
  static const char* const beginnings[] = {"aten::_unsafe_index", "aten::copy", "aten::_foreach", "aten::_fused",
                                           "aten::_amp_", "aten::set_", "aten::_pin_memory",
                                           "aten::repeat_interleave", "aten::_ctc_loss"};
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

// Its own for that key, or one made of other operators. (Not hasComputedKernelForDispatchKey, which holds for
// all where there is a fallback, as that of Meta, which refuses.)
bool has_kernel(const c10::OperatorHandle& op, c10::DispatchKey key) {
  using c10::DispatchKey;
  return op.hasKernelForDispatchKey(key) || op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

OperatorFacts learn(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  OperatorFacts facts;
  facts.is_foreign = is_foreign_operator(schema.name());
  const auto& overload = schema.overload_name();
  facts.name_index = operator_index(overload.empty() ? schema.name() : schema.name() + "." + overload);
  facts.has_cpu_kernel = has_kernel(op, c10::DispatchKey::CPU);
  facts.has_rule_for_shape = has_kernel(op, c10::DispatchKey::Meta);
  facts.is_sized_by_kernel = !facts.has_rule_for_shape && !op.hasTag(at::Tag::dynamic_output_shape) &&
                             !op.hasTag(at::Tag::data_dependent_output);
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
  facts.is_choice = schema.name() == "aten::where" && schema.arguments().size() == 3;
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

}  // namespace

const OperatorFacts& facts_of(const c10::OperatorHandle& op) {
  static auto* known = new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OperatorFacts>>;
  static std::mutex mutex;
  std::lock_guard<std::mutex> guard(mutex);
  auto& entry = (*known)[&op.schema()];
  if (!entry) entry = std::make_unique<OperatorFacts>(learn(op));
  return *entry;
}

bool starts_with(const std::string& text, const char* beginning) { return text.rfind(beginning, 0) == 0; }

}  // namespace zerokit
