#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/stack_view.h>
#include <piper/stack/estimator.h>

namespace piper::cli {
namespace {

constexpr const char* kStack = "piper";

}  // namespace

std::optional<StackView> stack_view(const Priced& priced) {
  if (priced.cluster.kind != "gpu") return std::nullopt;
  const strategy::Strategy& s = priced.strategy;
  const stack::Stack stack = stack::load_stack(kStack);
  stack::Estimator estimator(priced.model, priced.cluster, stack, s.precision, s.sequence);
  const stack::Estimate e = estimator.estimate(s);
  return StackView{.step_seconds = e.seconds,
                   .mfu = stack::mfu(priced.model, s, priced.cluster, e.seconds),
                   .peak_bytes = e.peak_bytes};
}

std::string to_text(const std::optional<StackView>& view) {
  if (!view) return "";
  return fmt::format(
      "these are this runtime's exact costs at the rates of micro-benchmarks; as whole steps go, "
      "and as "
      "`piper plan` ranks (--stack {}): {}, MFU {}, {} a device\n",
      kStack, format_seconds(view->step_seconds), format_percent(view->mfu),
      format_bytes(view->peak_bytes));
}

void add_to(Json& json, const std::optional<StackView>& view) {
  if (view)
    json["as_planned"] = {{"stack", kStack},
                          {"step_seconds", view->step_seconds},
                          {"mfu", view->mfu},
                          {"peak_bytes", view->peak_bytes}};
}

}  // namespace piper::cli
