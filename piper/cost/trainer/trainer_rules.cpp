#include <embedded/trainer_rules.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/suggest.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/cost/trainer/trainer_rules.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace piper::cost {
namespace {

using Relation = Condition::Relation;

struct RelationName {
  const char* name;
  Relation relation;
};
constexpr std::array kRelations{RelationName{"not", Relation::kNot},
                                RelationName{"above", Relation::kAbove},
                                RelationName{"below", Relation::kBelow},
                                RelationName{"multiple_of", Relation::kMultipleOf},
                                RelationName{"not_multiple_of", Relation::kNotMultipleOf},
                                RelationName{"divisor_of", Relation::kDivisorOf},
                                RelationName{"not_divisor_of", Relation::kNotDivisorOf}};

bool is_multiple(int64_t value, int64_t of) { return of != 0 && value % of == 0; }

std::vector<std::string> fact_names() {
  std::vector<std::string> names;
  for (const Fact& fact : facts()) names.emplace_back(fact.name);
  return names;
}

// "sequence_parallel" -> "false", with {fact} in sentences.
std::string filled(const std::string& sentence, const Known& known) {
  std::string text;
  for (size_t i = 0; i < sentence.size();) {
    const size_t open = sentence.find('{', i);
    text += sentence.substr(i, open - i);
    if (open == std::string::npos) break;
    const size_t close = sentence.find('}', open);
    const Fact* fact = find_fact(sentence.substr(open + 1, close - open - 1));
    PIPER_CHECK(fact != nullptr, sentence);  // parse_rules() has seen to it
    text += fact->text_of(fact->read(known));
    i = close + 1;
  }
  return text;
}

int64_t value_of(const Condition& c, const Known& known) { return c.fact->read(known); }

bool holds(const Condition& c, const Known& known,
           const std::map<std::string, std::string>& flags) {
  if (c.fact == nullptr) return c.holds(flags.contains(c.flag) ? 1 : 0, 0);
  return c.holds(value_of(c, known), c.other != nullptr ? c.other->read(known) : 0);
}

void add_once(std::vector<std::string>& lines, std::string line) {
  if (std::ranges::find(lines, line) == lines.end()) lines.push_back(std::move(line));
}

Decided decided_of(const Condition& c) {
  return c.other == nullptr ? c.fact->decided : std::max(c.fact->decided, c.other->decided);
}

// --- reading ---

// The integer that a JSON value is of this fact.
std::optional<int64_t> read_value(const Json& json, const Fact* fact) {
  using enum Fact::Kind;
  const Fact::Kind kind = fact == nullptr ? kYesNo : fact->kind;
  switch (kind) {
    case kYesNo:
      if (json.is_boolean()) return json.get<bool>() ? 1 : 0;
      break;
    case kCount:
      if (json.is_number_integer()) return json.get<int64_t>();
      break;
    case kWord:
      if (json.is_string()) {
        const std::vector<std::string> words = fact->words();
        const auto found = std::ranges::find(words, json.get<std::string>());
        if (found != words.end()) return found - words.begin();
      }
      break;
  }
  return std::nullopt;
}

std::string allowed_of(const Fact* fact) {
  if (fact != nullptr && fact->kind == Fact::Kind::kCount) return "an integer";
  if (fact != nullptr && fact->kind == Fact::Kind::kWord)
    return fmt::format("{}", fmt::join(fact->words(), ", "));
  return "true, false";
}

class RuleReader {
 public:
  RuleReader(const Json& json, std::string path, Problems* problems)
      : path_(std::move(path)), problems_(problems), reader_(json, path_, problems) {}

  Rule read() {
    rule_.name = reader_.text("name");
    rule_.source = reader_.text("source");
    const Json* when = reader_.object("when");
    if (when == nullptr || when->empty())
      reader_.problem("when", "is empty; allowed: a condition or more");
    else
      for (const auto& [key, value] : when->items()) read_condition(key, value);
    rule_.forbids = sentence("forbids");
    rule_.warns = sentence("warns");
    rule_.nearest = sentence("nearest");
    if (const Json* wants = reader_.object("wants")) {
      ObjectReader reader(*wants, path_ + ".wants", problems_);
      read_words(reader, "flags", rule_.flags);
      read_words(reader, "environment", rule_.environment);
      reader.refuse_unknown();
    }
    const int answers = !rule_.forbids.empty() + !rule_.warns.empty() + (rule_.wants_any() ? 1 : 0);
    if (answers != 1)
      problems_->add(path_, fmt::format("has {} of forbids, warns and wants; allowed: one of them",
                                        answers == 0 ? "none" : "several"));
    if (!rule_.nearest.empty() && rule_.forbids.empty())
      reader_.problem("nearest", "stands without forbids");
    reader_.refuse_unknown();
    return std::move(rule_);
  }

 private:
  std::string sentence(const char* key) {
    std::string text = reader_.text(key, "");
    for (size_t open = text.find('{'); open != std::string::npos; open = text.find('{', open + 1)) {
      const size_t close = text.find('}', open);
      const std::string name =
          close == std::string::npos ? "" : text.substr(open + 1, close - open - 1);
      if (find_fact(name) != nullptr) continue;
      reader_.problem(key, fmt::format("speaks of {{{}}}, which is no fact{}", name,
                                       did_you_mean(name, fact_names())));
    }
    return text;
  }

  void read_words(ObjectReader& reader, const char* key,
                  std::map<std::string, std::string>& words) {
    const Json* object = reader.object(key);
    if (object == nullptr) return;
    for (const auto& [name, value] : object->items())
      if (value.is_string())
        words[name] = value.get<std::string>();
      else
        reader.problem(key, fmt::format("has {} for {}; allowed: a text (\"\": a switch)",
                                        quote(value), name));
  }

  void read_condition(const std::string& key, const Json& json) {
    const std::string path = fmt::format("{}.when.{}", path_, key);
    Condition c{.fact = find_fact(key), .flag = key.starts_with("--") ? key : ""};
    if (c.fact == nullptr && c.flag.empty())
      return problems_->add(path, fmt::format("is no fact{}", did_you_mean(key, fact_names())));
    if (!json.is_object()) return add_values(c, json, path);
    if (json.empty()) return problems_->add(path, "is empty; allowed: a relation or more");
    for (const auto& [name, value] : json.items()) {
      const auto found =
          std::ranges::find_if(kRelations, [&](const RelationName& r) { return r.name == name; });
      if (found == kRelations.end()) {
        std::vector<std::string> names;
        for (const RelationName& r : kRelations) names.emplace_back(r.name);
        problems_->add(path, fmt::format("has '{}'; allowed: {}", name, fmt::join(names, ", ")));
        continue;
      }
      c.relation = found->relation;
      c.other = nullptr;
      const bool is_count = c.fact != nullptr && c.fact->kind == Fact::Kind::kCount;
      if (!is_count && c.relation != Relation::kNot) {
        problems_->add(path, fmt::format("has '{}', which is of counts; allowed: not", name));
      } else if (is_count && value.is_string()) {
        c.values.clear();
        c.other = find_fact(value.get<std::string>());
        if (c.other == nullptr || c.other->kind != Fact::Kind::kCount)
          problems_->add(path, fmt::format("has {}, which is no count", quote(value)));
        else
          rule_.when.push_back(c);
      } else if (value.is_array() && c.relation != Relation::kNot) {
        problems_->add(path, fmt::format("has a list for '{}'; allowed: one", name));
      } else {
        add_values(c, value, path);
      }
    }
  }

  void add_values(Condition c, const Json& json, const std::string& path) {
    c.values.clear();
    const Json list = json.is_array() ? json : Json::array({json});
    for (const Json& one : list) {
      const std::optional<int64_t> value = read_value(one, c.fact);
      if (!value)
        return problems_->add(path,
                              fmt::format("is {}; allowed: {}", quote(one), allowed_of(c.fact)));
      c.values.push_back(*value);
    }
    if (c.values.empty()) return problems_->add(path, "is an empty list");
    std::ranges::sort(c.values);
    rule_.when.push_back(std::move(c));
  }

  std::string path_;
  Problems* problems_;
  ObjectReader reader_;
  Rule rule_;
};

// --- contradictions ---

bool is_of_same(const Condition& a, const Condition& b) {
  return a.fact == b.fact && a.flag == b.flag;
}

// Whether some value of each fact is all that conditions on constants ask of it. What two facts
// have to do with each other is not looked at.
bool may_hold(const std::vector<Condition>& conditions) {
  return std::ranges::all_of(conditions, [&](const Condition& of) {
    std::vector<int64_t> tried;
    if (of.fact == nullptr || of.fact->kind == Fact::Kind::kYesNo) {
      tried = {0, 1};
    } else if (of.fact->kind == Fact::Kind::kWord) {
      for (size_t i = 0; i < of.fact->words().size(); ++i) tried.push_back(static_cast<int64_t>(i));
    } else {
      tried = {0, 1, std::numeric_limits<int64_t>::max() / 4};
      for (const Condition& c : conditions)
        if (is_of_same(c, of))
          for (const int64_t value : c.values)
            for (const int64_t near : {value - 1, value, value + 1, 2 * value})
              if (near >= 0) tried.push_back(near);
    }
    return std::ranges::any_of(tried, [&](int64_t value) {
      return std::ranges::all_of(conditions, [&](const Condition& c) {
        return !is_of_same(c, of) || c.other != nullptr || c.holds(value, 0);
      });
    });
  });
}

bool are_same(const std::vector<Condition>& a, const std::vector<Condition>& b) {
  return a.size() == b.size() && std::ranges::all_of(a, [&](const Condition& c) {
           return std::ranges::find(b, c) != b.end();
         });
}

std::string first_conflict(const std::map<std::string, std::string>& a,
                           const std::map<std::string, std::string>& b) {
  for (const auto& [name, value] : a)
    if (const auto found = b.find(name); found != b.end() && found->second != value) return name;
  return "";
}

void find_contradictions(const std::vector<Rule>& rules, Problems& problems) {
  for (size_t i = 0; i < rules.size(); ++i) {
    const Rule& rule = rules[i];
    const std::string path = fmt::format("rules[{}]", i);
    const std::string who = fmt::format("'{}' ", rule.name);
    if (!may_hold(rule.when)) problems.add(path, who + "can never hold");
    for (const Condition& c : rule.when) {
      if (c.fact != nullptr) continue;
      const bool is_wanted = std::any_of(rules.begin(), rules.begin() + static_cast<ptrdiff_t>(i),
                                         [&](const Rule& r) { return r.flags.contains(c.flag); });
      if (!is_wanted)
        problems.add(path,
                     fmt::format("{}asks for {}, which no rule before it wants", who, c.flag));
      if (!rule.forbids.empty())
        problems.add(path, fmt::format("{}forbids by {}; allowed: facts alone", who, c.flag));
    }
    for (size_t j = 0; j < i; ++j) {
      const Rule& other = rules[j];
      const std::string of = fmt::format("rules[{}] '{}'", j, other.name);
      if (rule.name == other.name) problems.add(path, fmt::format("{}has the name of {}", who, of));
      if (are_same(rule.when, other.when)) {
        if (rule.forbids.empty() != other.forbids.empty())
          problems.add(path, fmt::format("{}{} what {} {}, under the same conditions", who,
                                         rule.forbids.empty() ? "allows" : "forbids", of,
                                         rule.forbids.empty() ? "forbids" : "allows"));
        else if (rule.forbids == other.forbids && rule.warns == other.warns &&
                 rule.flags == other.flags && rule.environment == other.environment)
          problems.add(path, fmt::format("{}says what {} says", who, of));
      }
      std::string name = first_conflict(rule.flags, other.flags);
      if (name.empty()) name = first_conflict(rule.environment, other.environment);
      std::vector<Condition> both = rule.when;
      both.insert(both.end(), other.when.begin(), other.when.end());
      if (!name.empty() && may_hold(both))
        problems.add(path, fmt::format("{}wants another value of {} than {}, and both may hold",
                                       who, name, of));
    }
  }
}

}  // namespace

bool Condition::holds(int64_t value, int64_t of_other) const {
  const int64_t than = other != nullptr ? of_other : values.front();
  const auto is_listed = [&] {
    return other != nullptr ? value == than : std::ranges::find(values, value) != values.end();
  };
  switch (relation) {
    case Relation::kOneOf:
      return is_listed();
    case Relation::kNot:
      return !is_listed();
    case Relation::kAbove:
      return value > than;
    case Relation::kBelow:
      return value < than;
    case Relation::kMultipleOf:
      return is_multiple(value, than);
    case Relation::kNotMultipleOf:
      return !is_multiple(value, than);
    case Relation::kDivisorOf:
      return is_multiple(than, value);
    case Relation::kNotDivisorOf:
      return !is_multiple(than, value);
  }
  return false;
}

Ruling rule(const TrainerRules& rules, const Known& known) {
  Ruling ruling;
  for (const Rule& r : rules.rules) {
    if (!std::ranges::all_of(r.when,
                             [&](const Condition& c) { return holds(c, known, ruling.flags); }))
      continue;
    if (!r.forbids.empty())
      add_once(ruling.forbids,
               filled(r.forbids, known) +
                   (r.nearest.empty() ? "" : "; the nearest: " + filled(r.nearest, known)));
    if (!r.warns.empty()) add_once(ruling.warns, filled(r.warns, known));
    ruling.flags.insert(r.flags.begin(), r.flags.end());
    ruling.environment.insert(r.environment.begin(), r.environment.end());
  }
  return ruling;
}

Forbidden::Forbidden(const TrainerRules& rules, const Known& given)
    : known_(given), by_decision_(static_cast<size_t>(Decided::kLast) + 1) {
  for (const Rule& r : rules.rules) {
    if (r.forbids.empty()) continue;
    std::vector<Condition> open;
    bool may_apply = true;
    Decided last = Decided::kGiven;
    for (const Condition& c : r.when) {
      const Decided at = decided_of(c);
      if (at == Decided::kGiven)
        may_apply = may_apply && holds(c, given, {});
      else
        open.push_back(c);
      last = std::max(last, at);
    }
    if (may_apply && last != Decided::kGiven)
      by_decision_[static_cast<size_t>(last)].push_back(std::move(open));
  }
  known_.strategy = nullptr;
}

bool Forbidden::at(Decided decided, const strategy::Strategy& strategy) const {
  if (!asks(decided)) return false;
  const auto& rules = by_decision_[static_cast<size_t>(decided)];
  Known known = known_;
  known.strategy = &strategy;
  return std::ranges::any_of(rules, [&](const std::vector<Condition>& when) {
    return std::ranges::all_of(when, [&](const Condition& c) {
      return c.holds(value_of(c, known), c.other != nullptr ? c.other->read(known) : 0);
    });
  });
}

TrainerRules parse_rules(const Json& json, const std::string& source) {
  Problems problems(source);
  ObjectReader reader(json, "", &problems);
  TrainerRules found{.name = reader.text("name"),
                     .software = reader.text("software"),
                     .commit = reader.text("commit"),
                     .date = reader.text("date")};
  if (const Json* rules = reader.array("rules"))
    for (size_t i = 0; i < rules->size(); ++i)
      found.rules.push_back(RuleReader((*rules)[i], fmt::format("rules[{}]", i), &problems).read());
  if (found.rules.empty()) reader.problem("rules", "is empty; allowed: a rule or more");
  reader.refuse_unknown();
  problems.finish();
  find_contradictions(found.rules, problems);
  problems.finish();
  return found;
}

TrainerRules load_rules(const std::string& name_or_path) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : embedded::trainer_rules()) {
    names.emplace_back(file.name);
    if (file.name == name_or_path) {
      const std::string source = fmt::format("built-in rules {}", file.name);
      return parse_rules(parse_json(file.text, source), source);
    }
  }
  if (name_or_path.ends_with(".json"))
    return parse_rules(read_json_file(name_or_path), name_or_path);
  throw InvalidInput(fmt::format("rules '{}' are not known; allowed: a file or one of {}{}",
                                 name_or_path, fmt::join(names, ", "),
                                 did_you_mean(name_or_path, names)));
}

}  // namespace piper::cost
