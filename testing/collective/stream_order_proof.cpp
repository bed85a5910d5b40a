#include <fmt/core.h>
#include <piper/base/error.h>
#include <testing/collective/stream_order_proof.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <tuple>

namespace piper::collective {
namespace {

constexpr size_t kMostProblems = 10;
constexpr int kNumLanes = 2;

int lane(const Launch& launch) { return static_cast<int>(launch.lane); }
int other_lane(int lane) { return 1 - lane; }

// How far each lane has come: so many steps.
using Progress = std::array<int64_t, kNumLanes>;

// One member's programme by itself: whether it holds to `after`.
class Programme {
 public:
  Programme(const MemberSteps& member, const StreamOrder& order, std::vector<std::string>& problems,
            size_t number)
      : steps_(member.steps), order_(order), problems_(problems), number_(number) {}

  void check() {
    if (!place_steps()) return;
    std::vector<Progress> known(order_.launches.size());  // what is over when a launch starts
    Progress begun{};                                     // by lane: steps of launches so far
    std::array<Progress, kNumLanes> last{};
    std::vector<int64_t> ends(order_.launches.size());
    for (size_t i = 0; i < order_.launches.size(); ++i) {
      const Launch& launch = order_.launches[i];
      const int own = lane(launch), other = other_lane(own);
      known[i] = last[own];
      known[i][own] = begun[own];
      if (launch.waits_for >= 0) {
        const auto awaited = static_cast<size_t>(launch.waits_for);
        if (awaited >= i || lane(order_.launches[awaited]) != other)
          return say(fmt::format("launch {} waits for launch {}", i, awaited));
        if (!order_.launches[awaited].waited_for)
          return say(fmt::format("launch {} is not said to be waited for", awaited));
        known[i][other] = std::max(known[i][other], ends[awaited]);
      }
      begun[own] += launch.count;
      ends[i] = begun[own];
      last[own] = known[i];
    }
    check_order(known);
  }

 private:
  void say(const std::string& what) {
    if (problems_.size() < kMostProblems)
      problems_.push_back(fmt::format("member {}: {}", number_, what));
  }

  // Where each step stands: its launch, and its place in its lane.
  bool place_steps() {
    launch_.assign(steps_.size(), -1);
    place_.assign(steps_.size(), -1);
    Progress count{};
    for (size_t i = 0; i < order_.launches.size(); ++i) {
      const Launch& launch = order_.launches[i];
      for (int32_t k = launch.first; k < launch.first + launch.count; ++k) {
        const int32_t s = order_.steps.at(k);
        if (launch_.at(s) >= 0) return say(fmt::format("step {} is issued twice", s)), false;
        if (is_message(steps_[s]) != (launch.lane == Lane::kMessages))
          return say(fmt::format("step {} is in the wrong lane", s)), false;
        launch_[s] = static_cast<int32_t>(i);
        place_[s] = count[lane(launch)]++;
      }
    }
    for (size_t s = 0; s < steps_.size(); ++s)
      if (moves(steps_[s]) != (launch_[s] >= 0))
        return say(fmt::format("step {} is {}issued", s, moves(steps_[s]) ? "not " : "")), false;
    return true;
  }

  void check_order(const std::vector<Progress>& known) {
    std::vector<Progress> needed(steps_.size());  // before a step: so many steps of each lane
    for (size_t s = 0; s < steps_.size(); ++s) {
      for (const int32_t before : steps_[s].after) {
        Progress more = needed[before];
        if (launch_[before] >= 0) {
          const int own = lane(order_.launches[launch_[before]]);
          more[own] = std::max(more[own], place_[before] + 1);
        }
        for (int l = 0; l < kNumLanes; ++l) needed[s][l] = std::max(needed[s][l], more[l]);
      }
      if (launch_[s] < 0) continue;
      const int own = lane(order_.launches[launch_[s]]);
      // One after another in a local launch, all together in a group.
      Progress over = known[launch_[s]];
      if (order_.launches[launch_[s]].lane == Lane::kLocal) over[own] = place_[s];
      for (int l = 0; l < kNumLanes; ++l)
        if (needed[s][l] > over[l])
          return say(fmt::format("step {} does not wait for what it comes after", s));
    }
  }

  const std::vector<Step>& steps_;
  const StreamOrder& order_;
  std::vector<std::string>& problems_;
  size_t number_;
  std::vector<int32_t> launch_;  // by step; -1: moves nothing
  std::vector<int64_t> place_;
};

// A group and what it still waits for.
struct Place {
  size_t member = 0;
  int32_t launch = 0;
  auto operator<=>(const Place&) const = default;
};

struct Message {
  Place place;
  uint32_t part = 0;
  int64_t count = 0;
};

class Execution {
 public:
  Execution(const std::vector<MemberSteps>& members, const std::vector<StreamOrder>& orders,
            std::vector<std::string>& problems)
      : members_(members), orders_(orders), problems_(problems), states_(members.size()) {}

  void execute() {
    collect();
    if (!meet()) return;
    for (size_t m = 0; m < orders_.size(); ++m) {
      states_[m].over.resize(orders_[m].launches.size(), false);
      states_[m].begun.resize(orders_[m].launches.size(), false);
      changed_.push_back(m);
    }
    while (!changed_.empty()) {
      const size_t member = changed_.front();
      changed_.pop_front();
      for (bool moved = true; moved;) {
        moved = false;
        for (int l = 0; l < kNumLanes; ++l) moved = advance(member, l) || moved;
      }
    }
    for (size_t m = 0; m < orders_.size(); ++m)
      for (size_t i = 0; i < orders_[m].launches.size(); ++i)
        if (!states_[m].over[i]) {
          say(fmt::format("member {} waits in launch {} for ever", m, i));
          break;
        }
  }

 private:
  struct State {
    std::vector<bool> over, begun;
    std::array<size_t, kNumLanes> at{};  // of launches
  };
  using Pair = std::pair<size_t, size_t>;  // from, to

  void say(const std::string& what) {
    if (problems_.size() < kMostProblems) problems_.push_back(what);
  }

  void collect() {
    for (size_t m = 0; m < orders_.size(); ++m)
      for (size_t i = 0; i < orders_[m].launches.size(); ++i) {
        const Launch& launch = orders_[m].launches[i];
        if (launch.lane != Lane::kMessages) continue;
        for (int32_t k = launch.first; k < launch.first + launch.count; ++k) {
          const Step& step = members_[m].steps[orders_[m].steps[k]];
          const Place place{m, static_cast<int32_t>(i)};
          const auto peer = static_cast<size_t>(step.peer);
          if (step.kind == StepKind::kSend)
            sends_[{m, peer}].push_back({place, step.part, step.source.count});
          else
            receives_[{peer, m}].push_back({place, step.part, step.target.count});
        }
      }
  }

  // The k-th send of a pair with the k-th receive.
  bool meet() {
    std::map<std::tuple<Place, size_t>, int32_t> partner;  // of a group, by member
    for (const auto& [pair, sends] : sends_) {
      const std::vector<Message>& receives = receives_[pair];
      const std::string who = fmt::format("from member {} to member {}", pair.first, pair.second);
      for (size_t k = 0; k < std::min(sends.size(), receives.size()); ++k) {
        const Message &send = sends[k], &receive = receives[k];
        if (send.part != receive.part || send.count != receive.count)
          return say(fmt::format("message {} {}: part {} of {} meets part {} of {}", k, who,
                                 send.part, send.count, receive.part, receive.count)),
                 false;
        for (const auto& [one, other] :
             {std::pair{send.place, receive.place}, std::pair{receive.place, send.place}}) {
          const auto [found, first] = partner.try_emplace({one, other.member}, other.launch);
          if (!first && found->second != other.launch)
            return say(fmt::format("a group of member {} meets two of member {}", one.member,
                                   other.member)),
                   false;
          waits_[one].push_back(other);
        }
      }
      if (sends.size() != receives.size())
        return say(fmt::format("{} sends and {} receives {}", sends.size(), receives.size(), who)),
               false;
    }
    for (const auto& [pair, receives] : receives_)
      if (!receives.empty() && !sends_.contains(pair))
        return say(fmt::format("{} receives and no send from member {} to member {}",
                               receives.size(), pair.first, pair.second)),
               false;
    return true;
  }

  // Whether the lane's next launch could begin or end.
  bool advance(size_t member, int l) {
    State& state = states_[member];
    const std::vector<Launch>& launches = orders_[member].launches;
    size_t& at = state.at[l];
    while (at < launches.size() && lane(launches[at]) != l) ++at;
    if (at == launches.size()) return false;
    const Launch& launch = launches[at];
    if (!state.begun[at]) {
      if (launch.waits_for >= 0 && !state.over[launch.waits_for]) return false;
      state.begun[at] = true;
      for (const Place& other : waits_[{member, static_cast<int32_t>(at)}])
        changed_.push_back(other.member);
    }
    for (const Place& other : waits_[{member, static_cast<int32_t>(at)}])
      if (!states_[other.member].begun[other.launch]) return false;
    state.over[at++] = true;
    return true;
  }

  const std::vector<MemberSteps>& members_;
  const std::vector<StreamOrder>& orders_;
  std::vector<std::string>& problems_;
  std::vector<State> states_;
  std::map<Pair, std::vector<Message>> sends_, receives_;
  std::map<Place, std::vector<Place>> waits_;  // of a group: those that must have begun
  std::deque<size_t> changed_;                 // members that may go on
};

}  // namespace

std::vector<std::string> problems(const std::vector<MemberSteps>& members,
                                  const std::vector<StreamOrder>& orders) {
  PIPER_CHECK(members.size() == orders.size());
  std::vector<std::string> found;
  for (size_t m = 0; m < members.size(); ++m) Programme(members[m], orders[m], found, m).check();
  if (found.empty()) Execution(members, orders, found).execute();
  return found;
}

}  // namespace piper::collective
