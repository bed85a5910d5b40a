// SIGTERM, SIGINT (Ctrl-C), SIGHUP (the terminal is gone), SIGXCPU (a limit of processor time) and
// SIGUSR1 (what schedulers are told to send before a job's time is over) during training: the first
// asks to finish the step and save; a further SIGTERM or SIGINT stops now, as the signal would have
// done without us. The others come again while their cause lasts, and stop nothing then.
//
// SIGQUIT, SIGUSR2 and SIGALRM end every command at once, as without us, but not without a word;
// SIGXCPU and SIGUSR1 likewise where nothing is saved.
//
// What comes within 50 ms of the first is the same request: timeout(1) signals its command twice,
// once by its number and once with its group. A SIGHUP or SIGINT that the process was started to
// ignore (nohup) stays ignored.
#pragma once

namespace piper::cli {

// What a command that was asked to stop, and has saved, exits with.
constexpr int kExitStopped = 3;

// Makes each signal that ends a command at once say so in a line on standard error. Call first in
// main.
void say_deadly_signals();

// Puts the handlers in place; they stay. Call once, from the main thread.
void catch_stop_signals();

// Whether the first one has come. Thread-safe.
bool stop_requested();

// Calls sigaction() with the handler; a signal other than SIGTERM that is ignored stays ignored.
void handle_unless_ignored(int signal, void (*handler)(int));

}  // namespace piper::cli
