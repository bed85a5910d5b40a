// The program of `piper bench`: piper-bench, which lies beside this one.
#pragma once

#include <filesystem>

namespace piper::cli {

// Throws InvalidInput, with the command that builds it, where it is not there.
std::filesystem::path bench_program();

}  // namespace piper::cli
