#include <doctest/doctest.h>
#include <piper/collective/all_reduce_direct.h>
#include <piper/collective/all_to_all_flat.h>
#include <testing/collective/verify.h>

#include <algorithm>

namespace piper::collective {
namespace {

// Lists that are right, to be broken in one place each.
std::vector<MemberSteps> reduction() {
  std::vector<MemberSteps> members;
  for (int64_t m = 0; m < 4; ++m) members.push_back(all_reduce_direct(m, 4, 8));
  return members;
}

const std::vector<std::vector<int64_t>> kCounts{{1, 2}, {2, 3}};

std::vector<MemberSteps> sound_exchange() {
  return {all_to_all_flat(0, std::vector<int64_t>{1, 2}, std::vector<int64_t>{1, 2}),
          all_to_all_flat(1, std::vector<int64_t>{2, 3}, std::vector<int64_t>{2, 3})};
}

bool mentions(const std::vector<std::string>& problems, const std::string& text) {
  return std::any_of(problems.begin(), problems.end(), [&](const std::string& problem) {
    return problem.find(text) != std::string::npos;
  });
}

Step& first(MemberSteps& member, StepKind kind) {
  return *std::find_if(member.steps.begin(), member.steps.end(),
                       [&](const Step& step) { return step.kind == kind; });
}

TEST_CASE("the verifier accepts lists that are right") {
  CHECK(verify_all_reduce(reduction(), 8).empty());
  CHECK(verify_all_to_all(sound_exchange(), kCounts).empty());
}

TEST_CASE("the verifier finds a sum in another order") {
  auto members = reduction();
  MemberSteps& owner = members[0];  // adds x1, x2, x3 to x0: exchange two of the sources
  std::vector<size_t> adds;
  std::vector<int32_t> receives;
  for (size_t s = 0; s < owner.steps.size(); ++s) {
    if (owner.steps[s].kind == StepKind::kAdd) adds.push_back(s);
    if (owner.steps[s].kind == StepKind::kReceive && owner.steps[s].part == 0)
      receives.push_back(static_cast<int32_t>(s));
  }
  for (const size_t add : adds)
    owner.steps[add].after.append(receives.data(), receives.data() + receives.size());
  CHECK(verify_all_reduce(members, 8).empty());
  std::swap(owner.steps[adds[0]].source, owner.steps[adds[1]].source);
  CHECK(mentions(verify_all_reduce(members, 8), "not the sum in ascending order"));
}

TEST_CASE("the verifier finds an addition that was left out or doubled") {
  auto members = reduction();
  Step& add = first(members[1], StepKind::kAdd);
  add.source.count = add.target.count = 1;
  CHECK(mentions(verify_all_reduce(members, 8), "not the sum in ascending order"));
  members = reduction();
  members[1].steps.push_back(first(members[1], StepKind::kAdd));
  CHECK_FALSE(verify_all_reduce(members, 8).empty());
}

TEST_CASE("the verifier finds a sum of sums") {
  std::vector<MemberSteps> members(1);
  members[0].output_count = 2;
  const Block one{Buffer::kOutput, 0, 1}, two{Buffer::kOutput, 1, 1};
  members[0].steps = {{.kind = StepKind::kAdd, .source = one, .target = two},
                      {.kind = StepKind::kAdd, .source = two, .target = one, .after = {0}},
                      {.kind = StepKind::kAdd, .source = one, .target = two, .after = {1}}};
  CHECK(mentions(verify_all_reduce(members, 2), "adds two sums"));
}

TEST_CASE("the verifier finds a race: a step that no longer waits for what it must") {
  auto members = reduction();
  for (Step& step : members[2].steps)
    if (step.kind == StepKind::kReceive && step.part == 1) step.after.clear();
  CHECK(mentions(verify_all_reduce(members, 8), "race"));
}

TEST_CASE("the verifier finds messages without counterpart, of other sizes and repeated ones") {
  auto members = sound_exchange();
  members[1].steps.erase(members[1].steps.begin());  // its receive
  CHECK(mentions(verify_all_to_all(members, kCounts), "never finishes"));

  members = sound_exchange();
  first(members[0], StepKind::kSend).source.count = 1;
  CHECK(
      mentions(verify_all_to_all(members, kCounts), "member 0 sends 1 units, member 1 receives 2"));

  members = sound_exchange();
  Step again = first(members[0], StepKind::kSend);
  members[0].steps.push_back(again);
  CHECK_FALSE(verify_all_to_all(members, kCounts).empty());
}

TEST_CASE("the verifier finds an element in the wrong place and a block outside its buffer") {
  auto members = sound_exchange();
  first(members[0], StepKind::kSend).source.offset = 0;
  CHECK(mentions(verify_all_to_all(members, kCounts), "is not element"));
  members = sound_exchange();
  first(members[0], StepKind::kSend).source.offset = 2;
  CHECK(mentions(verify_all_to_all(members, kCounts), "leaves its buffer: [2, 4) of 3"));
}

TEST_CASE("the verifier finds members that wait for each other in a circle") {
  std::vector<MemberSteps> members(2);
  for (int32_t m = 0; m < 2; ++m) {
    members[m].input_count = members[m].output_count = 1;
    members[m].steps = {
        {.kind = StepKind::kReceive, .peer = 1 - m, .target = {Buffer::kOutput, 0, 1}},
        {.kind = StepKind::kSend, .peer = 1 - m, .source = {Buffer::kInput, 0, 1}, .after = {0}}};
  }
  CHECK(mentions(verify_all_to_all(members, {{0, 1}, {1, 0}}), "never finishes"));
  for (MemberSteps& member : members) member.steps[1].after.clear();
  CHECK(verify_all_to_all(members, {{0, 1}, {1, 0}}).empty());
}

}  // namespace
}  // namespace piper::collective
