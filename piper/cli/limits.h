// What every command needs of the limits that its process was started with.
#pragma once

#include <functional>

namespace piper::cli {

// Calls `work`, on a thread of its own where `ulimit -s` gives the main one less than Piper and the
// libraries need. Threads that start later have as much whatever that limit is.
int with_enough_stack(const std::function<int()>& work);

}  // namespace piper::cli
