#include <tests/lab/links.h>

#include <algorithm>

namespace piper::lab {
namespace {

constexpr double kNanosecondsPerSecond = 1e9;

Link make(std::string name, const Speed& speed, Nanoseconds latency) {
  return {std::move(name), speed.bytes_per_second, latency, speed.frame_cost};
}

Nanoseconds cost_of(const Link& link, const Frame& frame) {
  return frame.goes_first ? 0 : link.frame_cost;
}

Nanoseconds service_of(const Link& link, const Frame& frame) {
  return static_cast<Nanoseconds>(static_cast<double>(frame.bytes) / link.bytes_per_second *
                                  kNanosecondsPerSecond) +
         cost_of(link, frame);
}

}  // namespace

// Two links a rank, two a NIC, two a rack: out and in, up and down.
Network::Network(const Layout& layout) : layout_(layout) {
  const auto half = [](const Speed& speed) { return speed.latency / 2; };
  for (int64_t rank = 0; rank < layout.size(); ++rank)
    for (const char* way : {"out", "in"})
      links_.push_back(
          make("rank " + std::to_string(rank) + " " + way, layout.inner, half(layout.inner)));
  first_nic_ = static_cast<int64_t>(links_.size());
  for (int64_t nic = 0; nic < layout.num_nodes * layout.num_nics; ++nic)
    for (const char* way : {"up", "down"})
      links_.push_back(make("node " + std::to_string(nic / layout.num_nics) + " nic " +
                                std::to_string(nic % layout.num_nics) + " " + way,
                            layout.nic, half(layout.nic)));
  first_rack_ = static_cast<int64_t>(links_.size());
  if (layout.nodes_per_rack > 0)
    for (int64_t rack = 0; rack <= layout.rack_of(layout.size() - 1); ++rack)
      for (const char* way : {"up", "down"})
        links_.push_back(
            make("rack " + std::to_string(rack) + " " + way, layout.rack, half(layout.rack)));
  for (Link& link : links_)
    link.takes_turns = link.name.ends_with(" out") ||
                       (link.name.starts_with("node") && link.name.ends_with(" up"));
  turns_.resize(links_.size());
  least_latency_ = links_.front().latency;
  for (const Link& link : links_) least_latency_ = std::min(least_latency_, link.latency);
}

void Network::set_nic_rate(double bytes_per_second) {
  for (int64_t nic = first_nic_; nic < first_rack_; ++nic)
    links_[static_cast<size_t>(nic)].bytes_per_second = bytes_per_second;
}

int32_t Network::link_at(const Hop& hop) const {
  const int64_t from = hop.frame.from, to = hop.frame.to;
  const auto nic = [&](int64_t rank) {
    return first_nic_ + 2 * (layout_.node_of(rank) * layout_.num_nics + layout_.nic_of(rank));
  };
  const bool inside = layout_.node_of(from) == layout_.node_of(to);
  const int64_t rack_from = layout_.rack_of(from), rack_to = layout_.rack_of(to);
  const int32_t num_links = inside || rack_from == rack_to ? 2 : 4;
  if (hop.position >= num_links) return -1;
  const bool first = hop.position == 0, last = hop.position == num_links - 1;
  int64_t link = 0;
  if (inside)
    link = first ? 2 * from : 2 * to + 1;
  else if (first)
    link = nic(from);
  else if (last)
    link = nic(to) + 1;
  else
    link = first_rack_ + (hop.position == 1 ? 2 * rack_from : 2 * rack_to + 1);
  return static_cast<int32_t>(link);
}

void Network::enter(Nanoseconds now, const Frame& frame) {
  serve_until(now);
  const bool first = frame.goes_first ||
                     (frame.bytes <= kShortFrame && !num_waiting_.contains(connection_of(frame)));
  if (!first) ++num_waiting_[connection_of(frame)];
  hops_.push({now, next_order_++, frame, 0, first});
}

void Network::arrive(Hop hop) {
  const int32_t link = hop.is_turn ? static_cast<int32_t>(hop.frame.number) : link_at(hop);
  if (hop.is_turn) {
    turns_[link].is_called = false;
    return next_turn(link, hop.at);
  }
  if (hop.frame.goes_first || !links_[link].takes_turns) return serve(hop);
  Turns& turns = turns_[link];
  std::deque<Hop>& waiting = turns.waiting[connection_of(hop.frame)];
  if (waiting.empty()) turns.order.push_back(connection_of(hop.frame));
  waiting.push_back(hop);
  if (!turns.is_called) next_turn(link, hop.at);
}

// Serves the next connection's frame when the link is free, else when it will be.
void Network::next_turn(int32_t link, Nanoseconds now) {
  Turns& turns = turns_[link];
  if (turns.order.empty()) return;
  if (links_[link].free_at <= now) {
    const auto waiting = turns.waiting.find(turns.order.front());
    turns.order.pop_front();
    Hop hop = waiting->second.front();
    waiting->second.pop_front();
    if (waiting->second.empty())
      turns.waiting.erase(waiting);
    else
      turns.order.push_back(waiting->first);
    hop.at = now;
    serve(hop);
  }
  if (turns.order.empty()) return;
  turns.is_called = true;
  Hop call{.at = links_[link].free_at, .order = next_order_++, .frame = {.number = link}};
  call.is_turn = true;
  hops_.push(call);
}

void Network::serve(Hop hop) {
  Link& link = links_[link_at(hop)];
  const Nanoseconds service = service_of(link, hop.frame);
  const bool first = hop.frame.goes_first || (hop.first && !link.takes_turns);
  Nanoseconds& free_at = first ? link.first_free_at : link.free_at;
  const Nanoseconds begin = std::max(hop.at, free_at);
  free_at = begin + service;
  if (first) link.free_at = std::max(link.free_at, begin) + service;
  ++link.num_frames;
  link.num_bytes += hop.frame.bytes;
  const Nanoseconds head = begin + cost_of(link, hop.frame) + link.latency;
  const Nanoseconds tail = begin + service + link.latency;
  ++hop.position;
  const int32_t next = link_at(hop);
  if (next < 0) return arrivals_.push({{tail, hop.frame}, hop.first});
  // A faster link begins late enough not to run dry: it would stand still while others wait.
  hop.at = std::max(head, tail - service_of(links_[next], hop.frame));
  hop.order = next_order_++;
  hops_.push(hop);
}

void Network::serve_until(Nanoseconds now) {
  while (!hops_.empty() && hops_.top().at <= now) {
    const Hop hop = hops_.top();
    hops_.pop();
    arrive(hop);
  }
}

std::optional<Delivery> Network::pop(Nanoseconds now) {
  serve_until(now);
  if (arrivals_.empty() || arrivals_.top().delivery.at > now) return std::nullopt;
  const Arrival arrival = arrivals_.top();
  arrivals_.pop();
  if (!arrival.first) {
    const auto waiting = num_waiting_.find(connection_of(arrival.delivery.frame));
    if (--waiting->second == 0) num_waiting_.erase(waiting);
  }
  return arrival.delivery;
}

// A hop can wait as long as its own link's latency: nothing is delivered sooner.
std::optional<Nanoseconds> Network::next() const {
  std::optional<Nanoseconds> at;
  if (!arrivals_.empty()) at = arrivals_.top().delivery.at;
  if (!hops_.empty()) {
    const Nanoseconds hop = hops_.top().at + least_latency_;
    at = at ? std::min(*at, hop) : hop;
  }
  return at;
}

}  // namespace piper::lab
