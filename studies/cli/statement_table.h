// A paper's statements beside what is computed for them, as text or JSON.
#pragma once

#include <studies/statements.h>

namespace piper::studies {

void print_statements(const Paper& paper, bool json);

}  // namespace piper::studies
