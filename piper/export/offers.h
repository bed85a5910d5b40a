// What a trainer runs is said by its stack (stack::Offers, `runs` in configs/stacks): the search
// tries nothing else, and an exporter refuses the rest.
#pragma once

#include <piper/stack/stack.h>
#include <piper/strategy/strategy.h>

#include <string>
#include <string_view>
#include <vector>

namespace piper::exporting {

// What `offers` lacks of a strategy: a line for each axis, with what `software` runs and the
// nearest of it. Empty: nothing.
std::vector<std::string> not_offered(std::string_view software, const stack::Offers& offers,
                                     const strategy::Strategy& strategy);

}  // namespace piper::exporting
