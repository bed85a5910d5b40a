// Why a call of the system failed, in words that say what to change: where a limit was reached, it
// is named, with its value here. Thread-safe.
#pragma once

#include <exception>
#include <string>

namespace piper {

// The system's words for `error` (an errno); behind them the limit, for those of descriptors
// (EMFILE, ENFILE), of threads and processes (EAGAIN, which other calls do not pass here), and of
// memory (ENOMEM).
std::string cause_of(int error);

// What an error says. Where it is one of the system's (std::system_error), the words are those of
// cause_of(int) behind what its thrower wrote before them.
std::string cause_of(const std::exception& error);

// Whether a file that cannot be reached for this `error` may be sound: nobody may read it, the disk
// or the server does not answer, no descriptor is left. An absent one is not.
bool may_pass(int error);

}  // namespace piper
