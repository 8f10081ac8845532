// Registers kernels of the virtual device with whichever torch is there: operators gain arguments from one version to
// the next.
#pragma once

#include <torch/library.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dispatch.h"
#include "timing.h"

namespace zerokit {

// A kernel for an operator that this torch gives more arguments, which it does not look at, or fewer, which are None then.
class AdaptedKernel final : public c10::OperatorKernel {
 public:
  AdaptedKernel(c10::KernelFunction kernel, size_t arguments) : kernel_(std::move(kernel)), arguments_(arguments) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    stack->resize(stack->size() - op.schema().arguments().size() + arguments_);
    kernel_.callBoxed(op, keys, stack);
  }

 private:
  c10::KernelFunction kernel_;
  size_t arguments_;
};

// aten's kernels. What torch does not take is left to the general rule of dispatch.cpp, and the report says so.
class KernelLibrary {
 public:
  explicit KernelLibrary(torch::Library& library) : library_(library) {}

  // A kernel that stands for work of the device: `impl`, timed if there is a clock.
  template <class Result, class... Arguments>
  void kernel(const char* name, Result (*kernel)(Arguments...)) {
    impl(name, kernel, the_clock() != nullptr);
  }

  template <class Result, class... Arguments>
  void impl(const char* name, Result (*kernel)(Arguments...), bool is_timed = false) {
    const auto op = find(name);
    const auto own = c10::detail::inferFunctionSchemaFromFunctor<Result (*)(Arguments...)>();
    if (op && differ(op->schema(), *own) && can_be_adapted(op->schema(), *own)) {
      auto adapted = std::make_unique<AdaptedKernel>(c10::KernelFunction::makeFromUnboxedRuntimeFunction(kernel),
                                                     sizeof...(Arguments));
      impl(name, is_timed ? timed(c10::KernelFunction::makeFromBoxedFunctor(std::move(adapted)))
                          : torch::CppFunction::makeFromBoxedFunctor(std::move(adapted)));
    } else if (is_timed) {
      impl(name, timed(c10::KernelFunction::makeFromUnboxedRuntimeFunction(kernel)));
    } else {
      impl(name, torch::CppFunction(kernel));
    }
  }

  void impl(const char* name, torch::CppFunction&& kernel) {
    try {
      library_.impl(name, std::move(kernel));
    } catch (const c10::Error&) {
      note(Note::gap, std::string("aten::") + name + " as this version of torch has it");
    }
  }

 private:
  static std::optional<c10::OperatorHandle> find(const std::string& name) {
    const auto dot = name.find('.');
    const auto overload = dot == std::string::npos ? std::string() : name.substr(dot + 1);
    return c10::Dispatcher::singleton().findSchema({"aten::" + name.substr(0, dot), overload});
  }
  static c10::TypeKind kind(const c10::FunctionSchema& schema, size_t index) {
    return schema.arguments()[index].real_type()->kind();
  }
  static bool differ(const c10::FunctionSchema& theirs, const c10::FunctionSchema& own) {
    if (theirs.arguments().size() != own.arguments().size()) return true;
    for (size_t index = 0; index < own.arguments().size(); ++index) {
      if (kind(theirs, index) != kind(own, index)) return true;
    }
    return false;
  }
  // Integers may have become symbolic ones, which a boxed call does not tell apart.
  static bool can_be_adapted(const c10::FunctionSchema& theirs, const c10::FunctionSchema& own) {
    const auto same = [](c10::TypeKind one) { return one == c10::TypeKind::SymIntType ? c10::TypeKind::IntType : one; };
    for (size_t index = 0; index < own.arguments().size(); ++index) {
      const bool is_theirs = index < theirs.arguments().size();
      if (is_theirs && same(kind(theirs, index)) != same(kind(own, index))) return false;
      if (!is_theirs && kind(own, index) != c10::TypeKind::OptionalType) return false;
    }
    return true;
  }

  torch::Library& library_;
};

}  // namespace zerokit
