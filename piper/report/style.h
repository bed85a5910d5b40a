// The page's style sheet: light and dark by the reader's setting, no fonts or pictures from
// elsewhere.
#pragma once

#include <string_view>

namespace piper::report {

std::string_view style_sheet();

}  // namespace piper::report
