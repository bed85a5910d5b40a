// The reason of a failure that the user's input is at fault for begins with these words, so that
// the processes that hear of it end as the one that found it: by InvalidInput, not by CommError.
#pragma once

#include <string_view>

namespace piper::comm {

inline constexpr std::string_view kWrongInput = "wrong input: ";

}  // namespace piper::comm
