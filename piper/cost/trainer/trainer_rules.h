// What a trainer asks of a strategy beyond what its profile says that it runs: what it refuses,
// what it warns against, and what must stand beside what. Data, read from configs/trainers/rules (a
// file for each trainer's software, embedded), with the commit of the trainer at which they were
// read. A profile names its file ("rules"). The search offers nothing that a rule forbids, and
// exporters write what rules want.
//
//   {"name": "a mixture under tp", "source": "transformer/moe/moe_layer.py 636",
//    "when": {"mixture_layers": {"above": 0}, "tp": {"above": 1}, "sequence_parallel": false},
//    "forbids": "tp {tp} without sequence parallelism: ...", "nearest": "--sequence-parallel"}
//
// A rule holds where all of its conditions do. A condition names a fact (trainer_facts.h) and what
// it must be: a value, a list of values, or an object of relations (`above`, `below`, `not`,
// `multiple_of`, `not_multiple_of`, `divisor_of`, `not_divisor_of`), each with a value or the name
// of another count. A condition that begins with "--" is about a flag: whether a rule before it
// wants it. Then there is one of
//
//   "forbids": why, and "nearest": what to change, where something can be
//   "warns": what happens
//   "wants": {"flags": {"--name": "value", "--switch": ""}, "environment": {"NAME": "value"}}
//
// In sentences {fact} stands for its value.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cost/trainer/trainer_facts.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace piper::cost {

struct Condition {
  const Fact* fact = nullptr;  // null: of `flag`
  std::string flag;
  enum class Relation : uint8_t {
    kOneOf,
    kNot,
    kAbove,
    kBelow,
    kMultipleOf,
    kNotMultipleOf,
    kDivisorOf,
    kNotDivisorOf
  } relation = Relation::kOneOf;
  std::vector<int64_t> values;  // empty where another fact is meant
  const Fact* other = nullptr;

  bool holds(int64_t value, int64_t of_other) const;
  bool operator==(const Condition&) const = default;
};

struct Rule {
  std::string name, source;
  std::vector<Condition> when;
  // One of these is there.
  std::string forbids, warns;
  std::map<std::string, std::string> flags, environment;
  std::string nearest;  // beside `forbids`; may be empty

  bool wants_any() const { return !flags.empty() || !environment.empty(); }
};

struct TrainerRules {
  std::string name, software, commit, date;
  std::vector<Rule> rules;
};

// What rules say of one strategy, in their order, the same sentence once.
struct Ruling {
  std::vector<std::string> forbids, warns;
  std::map<std::string, std::string> flags, environment;
};
// Requires every pointer in `known` but the machine's to be set.
Ruling rule(const TrainerRules& rules, const Known& known);

// What a search asks of rules. Those that the question decides are decided here, once: what they
// refuse no choice of the search could mend. The others are asked where the last of their facts is
// chosen.
class Forbidden {
 public:
  // `given`: a strategy with what the question fixes (sequence, precision, capacity); all of it
  // must outlive this object, but the strategy.
  Forbidden(const TrainerRules& rules, const Known& given);

  // Whether a rule whose last fact is decided there refuses the strategy, of which all that is
  // decided until then must be set. Safe from several threads.
  bool at(Decided decided, const strategy::Strategy& strategy) const;
  // Whether any rule is asked there.
  bool asks(Decided decided) const { return !by_decision_[static_cast<size_t>(decided)].empty(); }

 private:
  Known known_;
  std::vector<std::vector<std::vector<Condition>>> by_decision_;
};

// All problems at once as InvalidInput: what is no rule, and rules that contradict themselves or
// each other (conditions that cannot hold, the same conditions with two answers, a flag with two
// values where both rules may hold).
TrainerRules parse_rules(const Json& json, const std::string& source);
// A built-in name or a path. Throws InvalidInput (with a suggestion), IoError.
TrainerRules load_rules(const std::string& name_or_path);

}  // namespace piper::cost
