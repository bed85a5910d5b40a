// Which of the processor's vector instructions Piper's own loops and choices use.
#pragma once

#include <string_view>

namespace piper::nn {

// In rising order. kAvx2 includes FMA, kAvx512 its parts F, BW, VL and DQ.
enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

// The widest that the processor has, at most what the environment variable PIPER_MAX_ISA names:
// "baseline", "avx2" or "avx512" (unset: no limit). It is read once. It limits neither libtorch nor
// libdnnl, which have variables of their own; scripts/with_isa sets all of them. Throws
// InvalidInput for another value. Thread-safe.
InstructionSet instruction_set();

// What a limit of this name (nullptr: none) leaves of what the processor has.
InstructionSet limited(InstructionSet has, const char* limit);

}  // namespace piper::nn
