// For tests with time limits, on machines that may be busy: what is found wrong may only have been late.
#pragma once

#include <functional>
#include <string>

namespace piper::comm {

// attempt(slack) plays it with all its times `slack` times as long and returns what was wrong, or "". Three attempts, each
// with four times as much slack as the one before; "" once one is right, otherwise what was wrong in the last.
inline std::string patiently(const std::function<std::string(double slack)>& attempt) {
  std::string wrong;
  for (const double slack : {1.0, 4.0, 16.0}) {
    wrong = attempt(slack);
    if (wrong.empty()) break;
  }
  return wrong;
}

}  // namespace piper::comm
