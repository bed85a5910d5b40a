#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/plan/excluded.h>
#include <piper/plan/shapes.h>

#include <algorithm>

namespace piper::plan {
namespace {

constexpr size_t kMostListed = 6;

std::string list(const std::vector<int64_t>& values) {
  if (values.size() <= kMostListed) return fmt::format("{}", fmt::join(values, ", "));
  const std::vector<int64_t> head(values.begin(), values.begin() + kMostListed - 1);
  return fmt::format("{}, ..., {} ({} degrees)", fmt::join(head, ", "), values.back(),
                     values.size());
}

// The values around `value` in `allowed` (ascending, not empty): "16 and 32 do".
std::string nearest_values(const std::vector<int64_t>& allowed, int64_t value) {
  const auto above = std::ranges::lower_bound(allowed, value);
  if (above == allowed.end()) return fmt::format("{} does", allowed.back());
  if (*above == value || above == allowed.begin()) return fmt::format("{} does", *above);
  return fmt::format("{} and {} do", *(above - 1), *above);
}

class Exclusions {
 public:
  explicit Exclusions(const Request& request)
      : r_(request), degrees_(expert_degrees(*request.model)) {
    for (const int64_t pp : strategy::divisors(r_.num_devices))
      if (pp <= layers() && wanted(r_.fixed.pp, pp)) depths_.push_back(pp);
  }

  std::vector<Excluded> list_all() {
    if (!r_.fixed.pp) add_depths();
    if (r_.fixed.paper_form)
      for (const int64_t pp : depths_) add_paper_depth(pp, r_.num_devices / pp);
    else if (!r_.fixed.ep)
      add_expert_degrees();
    return std::move(found_);
  }

 private:
  int64_t layers() const { return r_.model->num_layers(); }
  int64_t deepest() const { return depths_.empty() ? 1 : depths_.back(); }

  void add(std::string degrees, std::string constraint, std::string equation, std::string change) {
    found_.push_back(
        {std::move(degrees), std::move(constraint), std::move(equation), std::move(change)});
  }

  void add_depths() {
    const int64_t n = r_.num_devices;
    std::vector<int64_t> odd, deep;
    for (int64_t pp = 2; pp <= std::min(layers(), n); ++pp)
      if (n % pp != 0) odd.push_back(pp);
    for (const int64_t pp : strategy::divisors(n))
      if (pp > layers()) deep.push_back(pp);
    if (!odd.empty())
      add(fmt::format("pp {}", list(odd)), fmt::format("does not divide {} devices", n), "eq. 7",
          fmt::format("{} devices for pp {}", (n / odd.front() + 1) * odd.front(), odd.front()));
    if (!deep.empty())
      add(fmt::format("pp {}", list(deep)),
          fmt::format("more stages than the {} layers of {}", layers(), r_.model->name), "eq. 9",
          fmt::format("pp {}", deepest()));
  }

  // PP x EP = devices: one way a depth.
  void add_paper_depth(int64_t pp, int64_t ep) {
    const std::string degrees = fmt::format("pp {} x ep {}", pp, ep);
    const int64_t fast = fast_domain(*r_.cluster);
    if (!std::ranges::binary_search(degrees_, ep))
      add(degrees, fmt::format("ep {} does not divide {} experts", ep, r_.model->num_experts()),
          "eq. 8", fmt::format("ep: {}", nearest_values(degrees_, ep)));
    else if (ep > fast)
      add(degrees, fmt::format("ep {} leaves the fast domain of {} devices", ep, fast), "eq. 10",
          "without --paper it is priced instead");
  }

  // Degrees that some depth would allow but the experts do not, and the other way round.
  void add_expert_degrees() {
    const int64_t experts = r_.model->num_experts();
    std::vector<int64_t> many;
    for (const int64_t ep : strategy::divisors(r_.num_devices)) {
      const bool fits_a_stage =
          std::ranges::any_of(depths_, [&](int64_t pp) { return r_.num_devices / pp % ep == 0; });
      if (ep == 1 || !fits_a_stage || std::ranges::binary_search(degrees_, ep)) continue;
      if (ep > degrees_.back())
        many.push_back(ep);
      else
        add(fmt::format("ep {}", ep), fmt::format("ep {} does not divide {} experts", ep, experts),
            "eq. 8", fmt::format("ep: {}", nearest_values(degrees_, ep)));
    }
    if (!many.empty())
      add(fmt::format("ep {}", list(many)),
          experts == 0
              ? fmt::format("{} has no experts", r_.model->name)
              : fmt::format("more ranks than the {} experts of {}", experts, r_.model->name),
          "eq. 8",
          experts == 0
              ? "ep 1"
              : fmt::format("ep {}: further ranks hold replicas of the experts", degrees_.back()));
    for (const int64_t ep : degrees_) add_stages_without(ep);
  }

  void add_stages_without(int64_t ep) {
    std::vector<int64_t> without;
    int64_t deepest = 0;
    for (const int64_t pp : depths_)
      if (r_.num_devices / pp % ep != 0)
        without.push_back(pp);
      else
        deepest = pp;
    if (without.empty()) return;
    add(fmt::format("ep {} with pp {}", ep, list(without)),
        fmt::format("a stage's number of ranks, {}, is no multiple of ep {}",
                    r_.num_devices / without.front(), ep),
        "eq. 7",
        deepest > 0 ? fmt::format("pp {}", deepest)
                    : fmt::format("{} devices", (r_.num_devices / ep + 1) * ep));
  }

  const Request& r_;
  std::vector<int64_t> degrees_, depths_;
  std::vector<Excluded> found_;
};

}  // namespace

std::vector<Excluded> excluded_degrees(const Request& request) {
  return Exclusions(request).list_all();
}

}  // namespace piper::plan
