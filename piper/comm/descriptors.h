// File descriptors: that there are enough of them, and what is said when there are not.
#pragma once

#include <cstdint>
#include <string>

namespace piper::comm {

// Raises this process's soft limit of open files to `wanted`, as far as the hard limit lets it;
// never lowers it. Thread-safe.
void raise_descriptor_limit(int64_t wanted);

// Whether a call failed with this errno because the process or the machine has no room for one more
// descriptor or socket (EMFILE, ENFILE, ENOBUFS, ENOMEM).
bool is_descriptor_shortage(int error);

// The cause and what to do about it: "Too many open files: this process may have 20; raise that
// with `ulimit -n`". For another errno it is what strerror says.
std::string descriptor_shortage(int error);

}  // namespace piper::comm
