// The console of every command: what is printed arrives, or the command says that it did not and
// fails; and nobody who closes a pipe or limits a file's size kills a command in the middle.
#pragma once

#include <string>
#include <string_view>

namespace piper::cli {

// Call first in main. A write into a closed pipe (SIGPIPE) or beyond the limit of a file's size
// (SIGXFSZ) becomes an error of that write. Standard streams that are closed are filled, so that no
// file that is opened later becomes one of them; writing to them fails as before.
void open_console();

// Whether something printed to standard output was lost. Thread-safe.
bool is_output_lost();

// Flushes standard output. When something was lost, says so on standard error, once a process, with
// `consequence` behind ("; step 12 is saved"), and returns false.
bool check_output(const std::string& consequence = "");

// "piper: <text>" on standard error; in silence where that is gone, too. Never throws.
void say_error(std::string_view text) noexcept;

}  // namespace piper::cli
