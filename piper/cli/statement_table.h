// A paper's statements beside what is computed for them, as text or JSON: what `validate` and `moe`
// print.
#pragma once

#include <piper/validate/statements.h>

#include <string>
#include <vector>

namespace piper::cli {

void print_statements(const std::vector<validate::Statement>& statements,
                      const std::vector<std::string>& assumptions, bool json);

}  // namespace piper::cli
