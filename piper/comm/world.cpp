#include <fmt/core.h>
#include <piper/base/cause.h>
#include <piper/base/error.h>
#include <piper/comm/local_state.h>
#include <piper/comm/world.h>

#include <exception>
#include <system_error>
#include <thread>

namespace piper::comm {
namespace {

// What a rank's thread does; tells the others when it fails.
void run_rank(std::unique_ptr<Transport> transport, const std::function<void(Transport&)>& body,
              std::exception_ptr& error) {
  try {
    body(*transport);
  } catch (const InvalidInput& thrown) {
    error = std::current_exception();
    transport->fail(thrown.what(), Fault::kInput);
  } catch (const std::exception& thrown) {
    error = std::current_exception();
    transport->fail(cause_of(thrown), Fault::kRun);
  } catch (...) {
    error = std::current_exception();
    transport->fail("an unknown exception", Fault::kRun);
  }
}

}  // namespace

std::string failure_of(const World& world) {
  const Rank rank = world.failed_rank();
  return rank.valid() ? internal::sentence({rank, world.failure_reason(), world.failure_fault()})
                      : std::string();
}

void run_ranks(World& world, const std::function<void(Transport&)>& body) {
  const std::vector<Rank> ranks = world.local_ranks();
  std::vector<std::unique_ptr<Transport>> endpoints;
  for (const Rank rank : ranks) endpoints.push_back(world.endpoint(rank));
  std::vector<std::exception_ptr> errors(endpoints.size());
  std::vector<std::thread> threads;
  threads.reserve(endpoints.size());
  try {
    for (size_t r = 0; r < endpoints.size(); ++r)
      threads.emplace_back([&, r] { run_rank(std::move(endpoints[r]), body, errors[r]); });
  } catch (const std::system_error& error) {  // no further thread
    const size_t r = threads.size();
    errors[r] = std::make_exception_ptr(IoError(fmt::format(
        "rank {}: its thread cannot start: {}", ranks[r].value, cause_of(error.code().value()))));
    endpoints[r]->fail("its thread cannot start: " + cause_of(error.code().value()), Fault::kRun);
  }
  for (std::thread& thread : threads) thread.join();

  const Rank failed = world.failed_rank();
  if (!failed.valid()) return;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r] != failed) continue;
    if (errors[r]) std::rethrow_exception(errors[r]);
    throw CommError(fmt::format("rank {}: {}", failed.value, world.failure_reason()));
  }
  const std::string text = failure_of(world);
  if (world.failure_fault() == Fault::kInput) throw InvalidInput(text);
  throw CommError(text);
}

}  // namespace piper::comm
