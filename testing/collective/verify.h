// Proves step lists without running them: executes all members on symbols instead of numbers.
//
// Every element is a list of terms "member m's element e", in the order in which they were added.
// Because the lists are also shown to be free of races (any two steps of a member that touch the
// same place, one of them writing, are ordered by `after`), the one order executed stands for every
// order of starting and of arrival.
//
// For tests and for trying out algorithms: time and memory grow with the number of elements and
// with the square of the number of steps of a member. The plain oracle of prove.h, which knows
// steps that move rows, too, and large cases.
#pragma once

#include <piper/collective/steps.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::collective {

// Problems, one line each; empty = proven. Found in any list: blocks outside their buffer, `after`
// that is not smaller, races, messages without counterpart or with different sizes, waiting in a
// circle, reads of what nobody wrote, sums of sums (which no fixed order explains).

// counts[i][j] = units that member i has for member j. Every output element was written exactly
// once and is the right one: from member 0 first, back to back.
std::vector<std::string> verify_all_to_all(const std::vector<MemberSteps>& members,
                                           const std::vector<std::vector<int64_t>>& counts);

// Every output element of every member is ((x0 + x1) + x2) + ...: each member once, in ascending
// order.
std::vector<std::string> verify_all_reduce(const std::vector<MemberSteps>& members, int64_t count);

}  // namespace piper::collective
