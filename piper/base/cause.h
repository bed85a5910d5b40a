// Why a call of the system failed, in words that say what to change: where a limit was reached, it
// is named, with its value here. Thread-safe.
#pragma once

#include <string>

namespace piper {

// The system's words for `error` (an errno); behind them the limit, for those of descriptors
// (EMFILE, ENFILE), of threads and processes (EAGAIN, which other calls do not pass here), and of
// memory (ENOMEM).
std::string cause_of(int error);

// Whether a file that cannot be reached for this `error` may be sound: nobody may read it, the disk
// or the server does not answer, no descriptor is left. An absent one is not.
bool may_pass(int error);

}  // namespace piper
