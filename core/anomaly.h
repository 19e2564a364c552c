#pragma once

namespace lockstep {

// Finds where a NaN in a gradient comes from. While one lives, ops that this thread records keep
// the call stack they were made from, and a backward through them (in any thread, at any time)
// checks what each op's backward gives: the first gradient with a NaN is an Error(kInvalidArgument)
// that names the op, the input, its shape and name, and the calls that made the node.
//
//   const AnomalyMode anomaly;
//   loss_of(model, batch).backward();
//
// It costs a stack walk for each op and a pass over each gradient, so it is for debugging. Function
// names come from the program's symbol table; one that was stripped shows addresses.
class AnomalyMode {
 public:
  explicit AnomalyMode(bool enabled = true);
  ~AnomalyMode();
  AnomalyMode(const AnomalyMode&) = delete;
  AnomalyMode& operator=(const AnomalyMode&) = delete;

 private:
  bool before_;
};

// Whether ops of this thread are watched.
bool anomaly_enabled();

}  // namespace lockstep
