// Why a call of the system failed, in words that say what to change: where a limit was reached, it
// is named, with its value here. Thread-safe.
#pragma once

#include <string>

namespace piper {

// The system's words for `error` (an errno); behind them the limit, for those of descriptors
// (EMFILE, ENFILE), of threads and processes (EAGAIN, which other calls do not pass here), and of
// memory (ENOMEM).
std::string cause_of(int error);

}  // namespace piper
