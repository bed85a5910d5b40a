#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/nn/instruction_set.h>

#include <algorithm>
#include <cstdlib>

namespace piper::nn {
namespace {

InstructionSet of_processor() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return InstructionSet::kAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return InstructionSet::kAvx2;
#endif
  return InstructionSet::kBaseline;
}

InstructionSet named(std::string_view name) {
  if (name == "baseline") return InstructionSet::kBaseline;
  if (name == "avx2") return InstructionSet::kAvx2;
  if (name == "avx512") return InstructionSet::kAvx512;
  throw InvalidInput(fmt::format("PIPER_MAX_ISA is '{}'; allowed: baseline, avx2, avx512", name));
}

}  // namespace

InstructionSet limited(InstructionSet has, const char* limit) {
  return limit == nullptr ? has : std::min(has, named(limit));
}

InstructionSet instruction_set() {
  static const InstructionSet set =
      limited(of_processor(), std::getenv("PIPER_MAX_ISA"));  // NOLINT(concurrency-mt-unsafe)
  return set;
}

}  // namespace piper::nn
