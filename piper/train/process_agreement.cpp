#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/printable.h>
#include <piper/train/process_agreement.h>

#include <algorithm>
#include <exception>

namespace piper::train {
namespace {

// The first letter of what is shared: how the work went.
constexpr char kDone = '+', kInvalid = 'i', kFailed = 'f';

comm::Group everyone(const comm::Transport& transport) {
  comm::Group world;
  for (int64_t r = 0; r < transport.world_size(); ++r) world.members.push_back(Rank(r));
  world.index = transport.rank().value;
  return world;
}

// One number to and from every rank.
std::vector<int64_t> exchange(comm::Transport& transport, uint64_t key, const std::string& what,
                              int64_t value, double timeout_seconds) {
  const comm::Group world = everyone(transport);
  const std::vector<int64_t> send(world.members.size(), value);
  std::vector<int64_t> received(world.members.size());
  const auto operation =
      comm::start_exchange_counts(transport, world, {key, what}, 1, send, received);
  comm::wait(transport, *operation, timeout_seconds);
  return received;
}

// `texts` by process.
void require_same(const std::string& what, const std::vector<std::string>& texts) {
  for (size_t p = 1; p < texts.size(); ++p)
    if (texts[p] != texts[0])
      throw InvalidInput(fmt::format("process {} has another {} than process 0: {} against {}", p,
                                     what, texts[p], texts[0]));
}

}  // namespace

std::vector<std::string> on_all_processes(comm::World& world, const std::string& what,
                                          const std::function<std::string()>& work) {
  std::string outcome;
  std::exception_ptr failure;
  try {
    outcome = kDone + work();
  } catch (const InvalidInput& error) {
    failure = std::current_exception();
    outcome = kInvalid + std::string(error.what());
  } catch (const std::exception& error) {
    failure = std::current_exception();
    outcome = kFailed + std::string(error.what());
  }
  std::vector<std::string> told;
  try {
    told = world.share(what, outcome);
  } catch (const CommError&) {
    if (failure) std::rethrow_exception(failure);  // the nearer cause
    throw;
  }
  if (failure) std::rethrow_exception(failure);
  for (size_t p = 0; p < told.size(); ++p) {
    if (told[p].starts_with(kDone)) continue;
    const std::string text = fmt::format("process {}: {}", p, told[p].substr(1));
    if (told[p].starts_with(kInvalid)) throw InvalidInput(lines_of(text));
    throw CommError(text);
  }
  for (std::string& text : told) text.erase(0, 1);
  return told;
}

std::string on_first_process(comm::World& world, const std::string& what,
                             const std::function<std::string()>& work) {
  return on_all_processes(world, what,
                          [&] { return world.process() == 0 ? work() : std::string(); })
      .front();
}

void require_agreement(comm::World& world, const std::string& what, const std::string& text) {
  require_same(what, world.share(what, text));
}

void require_agreement(comm::World& world, const std::string& what,
                       const std::function<std::string()>& work) {
  require_same(what, on_all_processes(world, what, work));
}

std::vector<std::string> gather(comm::Transport& transport, uint64_t key, const std::string& mine,
                                double timeout_seconds) {
  const std::vector<int64_t> sizes =
      exchange(transport, key, "sizes of a gather", std::ssize(mine), timeout_seconds);
  const comm::OperationName name{key + 1, "gather"};
  if (transport.rank() != Rank(0)) {
    const auto send =
        comm::start_send(transport, Rank(0), name, std::as_bytes(std::span<const char>(mine)));
    comm::wait(transport, *send, timeout_seconds);
    return {};
  }
  std::vector<std::string> all(sizes.size());
  all[0] = mine;
  for (size_t r = 1; r < sizes.size(); ++r) {
    all[r].resize(static_cast<size_t>(sizes[r]));
    const auto receive = comm::start_receive(transport, Rank(static_cast<int64_t>(r)), name,
                                             std::as_writable_bytes(std::span<char>(all[r])));
    comm::wait(transport, *receive, timeout_seconds);
  }
  return all;
}

int64_t broadcast(comm::Transport& transport, uint64_t key, int64_t value, double timeout_seconds) {
  return exchange(transport, key, "broadcast", value, timeout_seconds).front();
}

std::vector<int64_t> all_gather_number(comm::Transport& transport, uint64_t key, int64_t value,
                                       double timeout_seconds) {
  return exchange(transport, key, "numbers of all ranks", value, timeout_seconds);
}

void barrier(comm::Transport& transport, uint64_t key, double timeout_seconds) {
  exchange(transport, key, "barrier", 0, timeout_seconds);
}

}  // namespace piper::train
