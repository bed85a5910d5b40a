// SIGTERM and SIGINT (Ctrl-C) during training: the first asks to finish the step and save, the second stops now, as the
// signal would have done without us.
#pragma once

namespace piper::cli {

// What a command that was asked to stop, and has saved, exits with.
constexpr int kExitStopped = 3;

// Puts the handlers in place; they stay. Call once, from the main thread.
void catch_stop_signals();

// Whether the first one has come. Thread-safe.
bool stop_requested();

}  // namespace piper::cli
