// What the schema says of an operator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>
#include <vector>

namespace zerokit {

struct OperatorFacts {
  int32_t name_index = -1;
  bool has_cpu_kernel = false;
  bool has_rule_for_shape = false;
  bool is_sized_by_kernel = false;  // only a kernel tells what results look like, from shapes and not from values
  bool draws_without_generator = false;
  bool mixes_devices = false;   // takes host tensors beside device tensors
  bool only_writes = false;     // every result is one of the arguments
  bool overwrites = false;      // reads nothing of what it writes: fills and random numbers
  bool small_result_is_true = false;
  bool is_choice = false;       // aten::where
  bool is_foreign = false;      // neither torch's nor of a library that has the same operators on CUDA
  int generator = -1;
  std::vector<bool> written;    // by argument
  std::vector<bool> is_out;     // by argument
  std::vector<int> aliased;     // by result: the argument it is, or -1
  std::vector<bool> is_view;    // by result: a view of that argument
};

// Looked up once for each operator.
const OperatorFacts& facts_of(const c10::OperatorHandle& op);

bool starts_with(const std::string& text, const char* beginning);

}  // namespace zerokit
