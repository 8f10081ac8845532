// Registers kernels of the virtual device with whichever torch is there: operators gain arguments from one version to
// the next.
#pragma once

#include <torch/library.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dispatch.h"

namespace zerokit {

// A kernel for an operator that has since been given more arguments, which it does not look at.
class ShorterKernel final : public c10::OperatorKernel {
 public:
  ShorterKernel(c10::KernelFunction kernel, size_t arguments) : kernel_(std::move(kernel)), arguments_(arguments) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    torch::jit::drop(*stack, op.schema().arguments().size() - arguments_);
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

  template <class Result, class... Arguments>
  void impl(const char* name, Result (*kernel)(Arguments...)) {
    const auto op = find(name);
    const auto own = c10::detail::inferFunctionSchemaFromFunctor<Result (*)(Arguments...)>();
    if (op && op->schema().arguments().size() > sizeof...(Arguments) && begins_alike(op->schema(), *own)) {
      auto shorter = std::make_unique<ShorterKernel>(c10::KernelFunction::makeFromUnboxedRuntimeFunction(kernel),
                                                     sizeof...(Arguments));
      impl(name, torch::CppFunction::makeFromBoxedFunctor(std::move(shorter)));
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
  static bool begins_alike(const c10::FunctionSchema& theirs, const c10::FunctionSchema& own) {
    for (size_t index = 0; index < own.arguments().size(); ++index) {
      if (theirs.arguments()[index].type()->kind() != own.arguments()[index].type()->kind()) return false;
    }
    return true;
  }

  torch::Library& library_;
};

}  // namespace zerokit
