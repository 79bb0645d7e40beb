// The CUDA libraries that a target may lack (cuBLASLt, cuDNN) are bound at run time by tables of functions, so that the
// plugin loads without them and says which is missing. They are looked for as the dynamic linker looks for any library
// (LD_LIBRARY_PATH, the system's folders) and never unloaded. Thread-safe.
#pragma once

#include <dlfcn.h>

#include <string>

namespace switchyard {

class SharedLibrary {
 public:
  // Opens `name` ("libcudnn.so.9"); `reason()` is empty iff that worked and every Bind so far found its symbol.
  explicit SharedLibrary(const char* name) : name_(name), handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) reason_ = std::string("without ") + name + ": " + LastError();
  }
  template <typename Function>
  void Bind(const char* symbol, Function** function) {
    if (handle_ == nullptr) return;
    *function = reinterpret_cast<Function*>(dlsym(handle_, symbol));
    if (*function == nullptr && reason_.empty())
      reason_ = "without " + name_ + ": it has no " + symbol + ", another version is needed";
  }
  const std::string& reason() const { return reason_; }

 private:
  static std::string LastError() {
    const char* text = dlerror();
    return text ? text : "no reason given";
  }
  std::string name_;
  void* handle_;
  std::string reason_;
};

}  // namespace switchyard
