// Functions of the device's runtime that libtorch has loaded, found by name: one program runs with
// CUDA, with HIP and with neither, and is built without the headers of any.
#pragma once

#include <dlfcn.h>

#include <string>

namespace piper::executor {

// False where nothing loaded has a function of that name.
template <class Function>
bool find_loaded(Function& function, const std::string& name) {
  function = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name.c_str()));
  return function != nullptr;
}

}  // namespace piper::executor
