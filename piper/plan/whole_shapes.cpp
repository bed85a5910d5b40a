#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/plan/setting.h>
#include <piper/plan/whole_shapes.h>

#include <algorithm>

namespace piper::plan {
namespace {

constexpr int64_t kMostTensor = 64, kMostContext = 64, kMostExpertTensor = 8;
constexpr int64_t kMostMicroBatch = 16;

class Shapes {
 public:
  explicit Shapes(const WholeRequest& request) : r_(request) {}

  std::vector<WholeShape> run() {
    const model::Model& m = *r_.model;
    const std::vector<int64_t> degrees = expert_degrees(m);
    for (const int64_t tp : divisors(r_.num_devices)) {
      if (tp > kMostTensor || !divides_heads(tp) || !wanted(r_.fixed.tp, tp)) continue;
      for (const int64_t cp : divisors(r_.num_devices / tp)) {
        if (cp > kMostContext || !wanted(r_.fixed.cp, cp)) continue;
        if (cp > 1 && (r_.sequence % (2 * cp) != 0 || r_.sequence / cp < 512)) continue;
        for (const int64_t pp : divisors(r_.num_devices / (tp * cp))) {
          if (pp > m.num_layers() || !wanted(r_.fixed.pp, pp)) continue;
          const int64_t dp = r_.num_devices / (tp * cp * pp);
          if (!wanted(r_.fixed.dp, dp) || r_.global_batch_sequences % dp != 0) continue;
          add_shapes({pp, tp, cp, dp, 1, 1, 1, false}, degrees);
        }
      }
    }
    if (shapes_.empty()) throw InvalidInput(why_empty());
    return std::move(shapes_);
  }

 private:
  // Fixed axes that nothing divides by, with the nearest that do; else the batch.
  std::vector<std::string> why_empty() const {
    std::vector<std::string> lines;
    const auto check = [&](const char* flag, const std::optional<int64_t>& fixed,
                           const std::vector<int64_t>& allowed, const char* what) {
      if (fixed && !std::ranges::binary_search(allowed, *fixed))
        lines.push_back(fmt::format("{} {} does not divide {}; {}", flag, *fixed, what,
                                    nearest_values(allowed, *fixed)));
    };
    const std::vector<int64_t> all = divisors(r_.num_devices);
    std::vector<int64_t> tensor, stages;
    for (const int64_t d : all) {
      if (d <= kMostTensor && divides_heads(d)) tensor.push_back(d);
      if (d <= r_.model->num_layers()) stages.push_back(d);
    }
    check("--tp", r_.fixed.tp, tensor, "the devices and heads");
    check("--pp", r_.fixed.pp, stages, "the devices, or is more than the layers");
    check("--ep", r_.fixed.ep, expert_degrees(*r_.model), "the experts");
    check("--cp", r_.fixed.cp, all, "the devices");
    check("--dp", r_.fixed.dp, all, "the devices");
    if (lines.empty())
      lines.emplace_back(
          "no strategy divides these devices, layers, heads, experts and this batch; leave one of "
          "the axes or --global-batch open");
    return lines;
  }

  // Of every layer, as strategy::contradictions() asks.
  bool divides_heads(int64_t tp) const {
    return std::ranges::all_of(
        r_.model->layers, [&](const model::Layer& l) { return l.attention.num_heads % tp == 0; });
  }
  bool divides_experts(int64_t etp) const {
    return std::ranges::all_of(r_.model->layers, [&](const model::Layer& l) {
      return !l.feed_forward.is_moe() || l.feed_forward.ffn % etp == 0;
    });
  }

  void add_shapes(WholeShape shape, const std::vector<int64_t>& degrees) {
    const int64_t stage = shape.tp * shape.cp * shape.dp;
    const int64_t per_rank = r_.global_batch_sequences / shape.dp;
    const bool moe = r_.model->num_moe_layers() > 0;
    for (shape.ep = 1; shape.ep <= stage; ++shape.ep) {
      if (!std::ranges::binary_search(degrees, shape.ep) || stage % shape.ep != 0 ||
          !wanted(r_.fixed.ep, shape.ep))
        continue;
      for (shape.etp = 1; shape.etp <= (moe ? kMostExpertTensor : 1); shape.etp *= 2) {
        if (stage % (shape.ep * shape.etp) != 0 || !divides_experts(shape.etp) ||
            !wanted(r_.fixed.etp, shape.etp))
          continue;
        for (shape.micro = 1; shape.micro <= std::min(per_rank, kMostMicroBatch); ++shape.micro) {
          if (per_rank % shape.micro != 0 || !wanted(r_.fixed.micro_batch_sequences, shape.micro))
            continue;
          for (const bool sp : {false, true}) {
            if (sp && (shape.tp == 1 || r_.sequence % (shape.tp * shape.cp) != 0)) continue;
            if (!wanted(r_.fixed.sequence_parallel, sp)) continue;
            shape.sequence_parallel = sp;
            shapes_.push_back(shape);
          }
        }
      }
    }
  }

  const WholeRequest& r_;
  std::vector<WholeShape> shapes_;
};

}  // namespace

std::vector<WholeShape> whole_shapes(const WholeRequest& request) { return Shapes(request).run(); }

}  // namespace piper::plan
