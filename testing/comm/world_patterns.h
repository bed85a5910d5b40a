// What any world must get right: for the tests of the worlds of several processes.
#pragma once

#include <piper/comm/world.h>

#include <string>

namespace piper::comm {

// Runs exchanges, sums, large, empty and many messages among all ranks and compares with what has
// to come, to the bit; "" or what is wrong in this process. All processes call it.
std::string wrong_patterns(World& world);

}  // namespace piper::comm
