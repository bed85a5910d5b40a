#include <doctest/doctest.h>
#include <piper/stack/stack.h>

using namespace piper;
using namespace piper::stack;

TEST_CASE("every built-in stack reads, and a higher ZeRO stage never leaves more on every rank") {
  for (const std::string& name : builtin_stacks()) {
    CAPTURE(name);
    const Stack s = load_stack(name);
    CHECK(s.name == name);
    CHECK(s.state_alone >= 16);
    CHECK(s.state[0].sharded == 0);
    for (size_t zero = 1; zero < 4; ++zero) {
      CHECK(s.state[zero].replicated < s.state[zero - 1].replicated);
      CHECK(s.state[zero].total(1) >= s.state_alone - 2);
    }
  }
}
