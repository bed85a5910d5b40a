// What a trainer runs is said by its trainer (cost::Offers, `runs` in configs/trainers): the search
// tries nothing else, and an exporter refuses the rest.
#pragma once

#include <piper/cost/trainer/trainer_profile.h>
#include <piper/strategy/strategy.h>

#include <string>
#include <string_view>
#include <vector>

namespace piper::exporting {

// What `offers` lacks of a strategy: a line for each axis, with what `software` runs and the
// nearest of it. Empty: nothing.
std::vector<std::string> not_offered(std::string_view software, const cost::Offers& offers,
                                     const strategy::Strategy& strategy);

}  // namespace piper::exporting
