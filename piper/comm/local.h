// The embedded transport: every rank is a thread of one process. No launcher, no network, no
// progress thread: of a send and its receive the one posted second copies, so a transfer goes on
// while its other rank computes. Waiting sleeps (two cores may carry eight ranks).
#pragma once

#include <piper/comm/world.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace piper::comm {

namespace internal {
class LocalState;
}

// Endpoints may outlive the world they came from, and keep working.
class LocalWorld final : public World {
 public:
  explicit LocalWorld(int64_t num_ranks);  // >= 1

  int64_t size() const override;
  std::vector<Rank> local_ranks() const override;
  int64_t process() const override { return 0; }
  int64_t num_processes() const override { return 1; }
  std::unique_ptr<Transport> endpoint(Rank rank) override;
  Rank failed_rank() const override;
  std::string failure_reason() const override;
  Fault failure_fault() const override;
  std::vector<std::string> share(const std::string& what, const std::string& text) override;
  void note(Rank, int64_t, std::string_view) override {}  // a thread does not die or hang alone

 private:
  std::shared_ptr<internal::LocalState> state_;
};

}  // namespace piper::comm
