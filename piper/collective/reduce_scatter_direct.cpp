#include <piper/collective/reduce_scatter_direct.h>
#include <piper/collective/reduction.h>

namespace piper::collective {

MemberSteps reduce_scatter_direct(int64_t member, int64_t num_members, int64_t count) {
  const int64_t n = num_members;
  Reduction reduction(member, shares_by_number(n, count), count);
  StepWriter& steps = reduction.steps;
  for (int64_t distance = 1; distance < n; ++distance) {
    const int64_t owner = (member + distance) % n;
    steps.send(owner, 0, reduction.shares[owner]);
  }
  std::vector<SumTerm> terms(n);
  terms[member].block = reduction.own();
  for (int64_t distance = 1; distance < n; ++distance) {
    const int64_t from = (member - distance + n) % n;
    terms[from].block = steps.scratch(reduction.own().count);
    terms[from].step = steps.receive(from, 0, terms[from].block);
  }
  add_in_order(steps, terms, member);
  return steps.take();
}

}  // namespace piper::collective
