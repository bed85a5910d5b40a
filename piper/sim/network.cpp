#include <piper/sim/network.h>

#include <algorithm>

namespace piper::sim {

Network::Network(const cost::Links& links)
    : links_(links), ports_(links.capacity.size()), index_of_(links.pattern.size(), -1) {
  for (size_t i = 0; i < ports_.size(); ++i) ports_[i].capacity = links.capacity[i];
}

void Network::touch(int32_t port) {
  if (ports_[static_cast<size_t>(port)].is_touched) return;
  ports_[static_cast<size_t>(port)].is_touched = true;
  touched_.push_back(port);
}

void Network::note_changed(int32_t index) {
  if (moving_[static_cast<size_t>(index)].is_changed) return;
  moving_[static_cast<size_t>(index)].is_changed = true;
  changed_.push_back(index);
}

void Network::begin(graph::OperationId operation, double now) {
  int32_t index = 0;
  if (free_.empty()) {
    index = static_cast<int32_t>(moving_.size());
    moving_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  index_of_[operation.index()] = index;
  const int32_t pattern = links_.pattern[operation.index()];
  // The flag stays: an index may be taken again before the changes are settled.
  moving_[static_cast<size_t>(index)] = {
      .operation = operation,
      .pattern = pattern,
      .is_changed = moving_[static_cast<size_t>(index)].is_changed,
      .remaining = links_.transfer_seconds[operation.index()],
      .since = now};
  for (const cost::PortNeed& need : links_.of(pattern)) {
    Port& port = ports_[static_cast<size_t>(need.port)];
    port.needed += need.units;
    port.moving.push_back(index);
    touch(need.port);
  }
  note_changed(index);
}

void Network::end(graph::OperationId operation) {
  const int32_t index = index_of_[operation.index()];
  for (const cost::PortNeed& need : links_.of(links_.pattern[operation.index()])) {
    Port& port = ports_[static_cast<size_t>(need.port)];
    port.needed -= need.units;
    *std::find(port.moving.begin(), port.moving.end(), index) = port.moving.back();
    port.moving.pop_back();
    touch(need.port);
  }
  moving_[static_cast<size_t>(index)].operation = graph::OperationId::none();
  free_.push_back(index);
}

void Network::find_changed() {
  for (const int32_t id : touched_) {
    Port& port = ports_[static_cast<size_t>(id)];
    port.is_touched = false;
    const double part = port.needed <= port.capacity
                            ? 1.0
                            : static_cast<double>(port.capacity) / static_cast<double>(port.needed);
    if (part == port.part) continue;
    port.part = part;
    for (const int32_t index : port.moving) note_changed(index);
  }
  touched_.clear();
  std::ranges::sort(changed_);
}

double Network::rate_of(const Moving& moving) const {
  double rate = 1;
  for (const cost::PortNeed& need : links_.of(moving.pattern))
    rate = std::min(rate, ports_[static_cast<size_t>(need.port)].part);
  return rate;
}

}  // namespace piper::sim
