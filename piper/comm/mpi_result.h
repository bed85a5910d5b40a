// What MPI's functions return, for the parts of mpi_wire.cpp.
#pragma once

#include <mpi.h>

#include <array>
#include <functional>
#include <string>
#include <utility>

namespace piper::comm {

class MpiResult {
 public:
  // tell(why) is called for every error.
  explicit MpiResult(std::function<void(const std::string&)> tell) : tell_(std::move(tell)) {}

  // Whether it is a success; tells what else it is.
  bool good(int code) const {
    if (code == MPI_SUCCESS) return true;
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int size = 0;
    MPI_Error_string(code, text.data(), &size);
    tell_(std::string("MPI: ") + text.data());
    return false;
  }

 private:
  std::function<void(const std::string&)> tell_;
};

}  // namespace piper::comm
