#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cluster/hostlist.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

namespace piper::cluster {
namespace {

constexpr const char* kExample = "allowed: such as node[001-004,017],x12";
constexpr size_t kMostDigits = 17;
constexpr size_t kMostLetters = 253;  // of a host's name (RFC 1123)

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
         c == '.';
}

std::optional<int64_t> number_in(std::string_view text) {
  int64_t value = 0;
  if (text.empty() || text.size() > kMostDigits || !std::ranges::all_of(text, is_digit))
    return std::nullopt;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// For messages: at most 60 characters, none of which steers a terminal.
std::string shortened(std::string_view text) {
  std::string shown(text.substr(0, 60));
  for (char& c : shown)
    if (c < ' ' || c > '~') c = '?';
  return shown + (text.size() > shown.size() ? "..." : "");
}

class Expander {
 public:
  Expander(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  std::vector<std::string> all() {
    std::vector<std::string> hosts;
    while (true) {
      for (std::string& host : one_item()) hosts.push_back(std::move(host));
      if (std::ssize(hosts) > kMostHosts) too_many();
      if (at_ == text_.size()) return hosts;
      ++at_;  // the comma
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InvalidInput(
        fmt::format("{} is '{}': {}; {}", source_, shortened(text_), what, kExample));
  }
  [[noreturn]] void too_many() const {
    throw InvalidInput(
        fmt::format("{} names more than {} hosts; allowed: fewer", source_, kMostHosts));
  }

  std::vector<std::string> one_item() {
    std::vector<std::string> hosts{""};
    const size_t begin = at_;
    for (; at_ < text_.size() && text_[at_] != ','; ++at_) {
      if (text_[at_] == '[') {
        extend(hosts, bracket());
      } else if (is_name(text_[at_])) {
        for (std::string& host : hosts) host += text_[at_];
      } else {
        fail(fmt::format("character {} is not one of a host's name", at_ + 1));
      }
    }
    if (at_ == begin) fail("a host without a name");
    if (std::ranges::any_of(hosts, [](const std::string& h) { return h.size() > kMostLetters; }))
      fail(fmt::format("a name of more than {} letters", kMostLetters));
    return hosts;
  }

  void extend(std::vector<std::string>& hosts, const std::vector<std::string>& numbers) const {
    if (std::ssize(hosts) * std::ssize(numbers) > kMostHosts) too_many();
    std::vector<std::string> longer;
    for (const std::string& host : hosts)
      for (const std::string& number : numbers) longer.push_back(host + number);
    hosts = std::move(longer);
  }

  // From '[' on; leaves at_ on ']'.
  std::vector<std::string> bracket() {
    const size_t end = text_.find(']', at_);
    if (end == std::string_view::npos) fail("a bracket is not closed");
    std::vector<std::string> numbers;
    std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    for (bool more = true; more;) {
      const size_t comma = inside.find(',');
      add_range(inside.substr(0, comma), numbers);
      more = comma != std::string_view::npos;
      if (more) inside.remove_prefix(comma + 1);
    }
    at_ = end;
    return numbers;
  }

  void add_range(std::string_view text, std::vector<std::string>& numbers) const {
    const size_t dash = text.find('-');
    const std::string_view low = text.substr(0, dash);
    const std::string_view high = dash == std::string_view::npos ? low : text.substr(dash + 1);
    const std::optional<int64_t> first = number_in(low), last = number_in(high);
    if (!first || !last) fail(fmt::format("'{}' is neither a number nor a range", shortened(text)));
    if (*last < *first) fail(fmt::format("the range '{}' runs backwards", shortened(text)));
    if (*last - *first >= kMostHosts - std::ssize(numbers)) too_many();
    for (int64_t i = *first; i <= *last; ++i)
      numbers.push_back(fmt::format("{:0{}}", i, low.size()));
  }

  std::string_view text_;
  const std::string& source_;
  size_t at_ = 0;
};

// "[001-004,017]", or "017" alone. A range goes on from 99 to 100, since it is padded to the digits
// of its first number, and not from 99 to 0100.
std::string in_brackets(const std::set<std::pair<size_t, int64_t>>& numbers) {
  std::string text;
  size_t ranges = 0;
  for (auto it = numbers.begin(); it != numbers.end(); ++ranges) {
    const auto [digits, first] = *it;
    int64_t last = first;
    for (++it; it != numbers.end() && it->second == last + 1 &&
               it->first == std::max(digits, fmt::formatted_size("{}", last + 1));
         ++it)
      ++last;
    text += fmt::format("{}{:0{}}", text.empty() ? "" : ",", first, digits);
    if (last > first) {
      text += fmt::format("-{:0{}}", last, digits);
      ++ranges;
    }
  }
  return ranges > 1 ? "[" + text + "]" : text;
}

}  // namespace

std::vector<std::string> expand_hostlist(std::string_view text, const std::string& source) {
  return Expander(text, source).all();
}

std::string compress_hostlist(std::span<const std::string> hosts) {
  std::vector<std::string> order;
  std::map<std::string, std::set<std::pair<size_t, int64_t>>> numbers;  // digits, number
  std::set<std::string> bare;
  for (const std::string& host : hosts) {
    size_t begin = host.size();
    while (begin > 0 && is_digit(host[begin - 1]) && host.size() - begin < kMostDigits) --begin;
    const std::string prefix = host.substr(0, begin);
    const std::optional<int64_t> number = number_in(std::string_view(host).substr(begin));
    const bool seen = numbers.contains(prefix) || bare.contains(prefix);
    if (!seen) order.push_back(prefix);
    if (number)
      numbers[prefix].insert({host.size() - begin, *number});
    else
      bare.insert(prefix);
  }
  std::string text;
  for (const std::string& prefix : order) {
    if (bare.contains(prefix)) text += (text.empty() ? "" : ",") + prefix;
    if (const auto found = numbers.find(prefix); found != numbers.end())
      text += (text.empty() ? "" : ",") + prefix + in_brackets(found->second);
  }
  return text;
}

std::vector<int64_t> expand_tasks_per_node(std::string_view text, size_t num_nodes,
                                           const std::string& source) {
  const auto fail = [&](const std::string& what) {
    throw InvalidInput(
        fmt::format("{} is '{}': {}; allowed: one count for all nodes or {} in "
                    "all, such as 8 or 8(x3),4",
                    source, shortened(text), what, num_nodes));
  };
  std::vector<int64_t> tasks;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const size_t times = item.find("(x");
    const std::optional<int64_t> count = number_in(item.substr(0, times));
    std::optional<int64_t> repeated = 1;
    if (times != std::string_view::npos)
      repeated = item.ends_with(')') ? number_in(item.substr(times + 2, item.size() - times - 3))
                                     : std::nullopt;
    if (!count || !repeated || *count < 1 || *repeated < 1)
      fail(fmt::format("'{}' is no count of tasks", shortened(item)));
    if (*repeated > kMostHosts - std::ssize(tasks)) fail("too many nodes");
    tasks.insert(tasks.end(), static_cast<size_t>(*repeated), *count);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
  }
  if (tasks.size() == 1) tasks.assign(num_nodes, tasks[0]);
  if (tasks.size() != num_nodes) fail(fmt::format("counts of {} nodes", tasks.size()));
  return tasks;
}

}  // namespace piper::cluster
