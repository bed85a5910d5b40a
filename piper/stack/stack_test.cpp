#include <doctest/doctest.h>
#include <piper/stack/stack.h>

using namespace piper;
using namespace piper::stack;

TEST_CASE("every built-in stack reads, and its states add up to what one replica holds") {
  for (const std::string& name : builtin_stacks()) {
    CAPTURE(name);
    const Stack s = load_stack(name);
    CHECK(s.name == name);
    CHECK(s.state[0].total(1) >= s.state_alone - 2.01);
  }
}
