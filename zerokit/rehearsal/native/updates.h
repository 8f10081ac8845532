// Who wants to know when trained parameters are written: what no optimizer tells of its steps, this does.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "blocks.h"

namespace zerokit {

// `told` is called after each write to a block that is watched from here on; what was watched before is no longer.
// nullptr: nobody wants to know.
void watch_updates(void (*told)());
void watch_block(Block& block);

void tell_of_update(const at::Tensor& written);
void tell_of_update(const Block* written);

// Tells, at its end, of the arguments that an operator writes.
class TellsOfUpdates {
 public:
  TellsOfUpdates(const std::vector<bool>& written, const std::vector<c10::IValue>& arguments)
      : written_(written), arguments_(arguments) {}
  ~TellsOfUpdates();
  TellsOfUpdates(const TellsOfUpdates&) = delete;
  TellsOfUpdates& operator=(const TellsOfUpdates&) = delete;

 private:
  const std::vector<bool>& written_;
  const std::vector<c10::IValue>& arguments_;
};

}  // namespace zerokit
