#include <fmt/format.h>
#include <piper/cluster/facts.h>

#include <algorithm>

namespace piper::cluster {
namespace {

class Facts {
 public:
  void add(const std::string& fact, bool stated) {
    if (stated) list_.push_back(fact);
  }
  std::vector<std::string> take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

void add_compute(const std::string& precision, const Compute& compute, Facts* facts) {
  const std::string at = "compute." + precision + ".";
  facts->add(at + "peak_flops_per_second", true);
  facts->add(at + "gemm_efficiency", compute.gemm_efficiency > 0);
  facts->add(at + "gemm_flops_per_second", !compute.gemm.empty());
  facts->add(at + "attention_flops_per_second", !compute.attention.empty());
  facts->add(at + "attention_backward_flops_per_second", !compute.attention_backward.empty());
}

void add_level(const Level& level, Facts* facts) {
  const std::string at = "levels." + level.name + ".";
  facts->add(at + "num_members", true);
  facts->add(at + "bandwidth_bytes_per_second", true);
  facts->add(at + "latency_seconds", true);
  facts->add(at + "num_nics", level.num_nics > 0);
  facts->add(at + "nic_bytes_per_second", level.nic_bytes_per_second > 0);
}

bool speaks_for(const Source& source, const std::string& fact) {
  return fact == source.fact || fact.starts_with(source.fact + ".");
}

}  // namespace

std::vector<std::string> stated_facts(const Cluster& cluster) {
  Facts facts;
  facts.add("memory_bytes", true);
  facts.add("memory_bytes_per_second", true);
  facts.add("fixed_task_seconds", cluster.fixed_task_seconds > 0);
  facts.add("cores_per_node", cluster.cores_per_node > 0);
  for (const auto& [precision, compute] : cluster.compute) add_compute(precision, compute, &facts);
  facts.add("element_wise_bytes_per_second", !cluster.element_wise.empty());
  facts.add("copy_bytes_per_second", !cluster.copy.empty());
  for (const Level& level : cluster.levels) add_level(level, &facts);
  for (const auto& [name, value] : cluster.numbers) facts.add("numbers." + name, true);
  for (const Curve& curve : cluster.curves) facts.add("curves." + curve.name, true);
  return facts.take();
}

const Source* source_of(const Cluster& cluster, const std::string& fact) {
  const Source* best = nullptr;
  for (const Source& source : cluster.sources)
    if (speaks_for(source, fact) && (best == nullptr || source.fact.size() > best->fact.size()))
      best = &source;
  return best;
}

std::vector<std::string> problems_of_sources(const Cluster& cluster) {
  std::vector<std::string> lines;
  const std::vector<std::string> facts = stated_facts(cluster);
  for (const std::string& fact : facts)
    if (source_of(cluster, fact) == nullptr)
      lines.push_back(fmt::format("'{}' has no source", fact));
  for (const Source& source : cluster.sources)
    if (std::none_of(facts.begin(), facts.end(),
                     [&](const std::string& fact) { return speaks_for(source, fact); }))
      lines.push_back(fmt::format("'sources.{}' speaks for no stated fact", source.fact));
  return lines;
}

bool is_assumption(const Source& source) { return source.source.starts_with("assumption"); }

}  // namespace piper::cluster
