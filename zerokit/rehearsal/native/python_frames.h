// How a library runs the frames of Python's functions in Python's place (PEP 523).
//
// Python's functions are looked up in the process, since its headers may not be installed.
#pragma once

#include <dlfcn.h>
#include <sys/types.h>

namespace zerokit {

using EvaluateFrame = void* (*)(void* thread_state, void* frame, int throws);

struct PythonFrames {
  EvaluateFrame evaluate = nullptr;         // as Python itself does
  void* (*code_of)(void* frame) = nullptr;  // the code object, which must be released if there is `release`
  void (*release)(void* object) = nullptr;
  int (*get_extra)(void* code, ssize_t index, void** extra) = nullptr;
  int (*set_extra)(void* code, ssize_t index, void* extra) = nullptr;
  ssize_t index = -1;  // of what a code object keeps for this library

  // Called with Python's lock. False if this Python has another interface.
  bool find_interface() {
    EvaluateFrame (*current)(void*) = nullptr;
    ssize_t (*new_index)(void (*)(void*)) = nullptr;
    if (!find(interpreter, "PyInterpreterState_Get") || !find(current, "_PyInterpreterState_GetEvalFrameFunc") ||
        !find(replace, "_PyInterpreterState_SetEvalFrameFunc") ||
        !find(new_index, "PyUnstable_Eval_RequestCodeExtraIndex", "_PyEval_RequestCodeExtraIndex") ||
        !find(get_extra, "PyUnstable_Code_GetExtra", "_PyCode_GetExtra") ||
        !find(set_extra, "PyUnstable_Code_SetExtra", "_PyCode_SetExtra")) {
      return false;
    }
    if (find(code_of, "PyUnstable_InterpreterFrame_GetCode")) {
      find(release, "Py_DecRef");
    } else {
      code_of = code_of_3_11;
    }
    index = new_index(nullptr);
    evaluate = current(interpreter());
    return true;
  }

  // Called with Python's lock, after `find_interface`.
  void replace_evaluation(EvaluateFrame own) { replace(interpreter(), own); }

  template <class Function>
  static bool find(Function& function, const char* name, const char* older_name = nullptr) {
    void* found = dlsym(RTLD_DEFAULT, name);
    if (found == nullptr && older_name != nullptr) found = dlsym(RTLD_DEFAULT, older_name);
    function = reinterpret_cast<Function>(found);
    return found != nullptr;
  }

 private:
  void* (*interpreter)() = nullptr;
  void (*replace)(void*, EvaluateFrame) = nullptr;

  // Before PyUnstable_InterpreterFrame_GetCode: f_func, f_globals, f_builtins, f_locals, f_code
  // (Include/internal/pycore_frame.h).
  static void* code_of_3_11(void* frame) { return static_cast<void**>(frame)[4]; }
};

}  // namespace zerokit
