#include <piper/cli/meet_processes.h>
#include <piper/comm/launch.h>
#include <piper/comm/local.h>
#include <piper/comm/process_world.h>

namespace piper::cli {

std::unique_ptr<comm::World> meet_processes(int64_t num_ranks, const MeetingFlags& flags) {
  const auto launch = comm::launch_from();
  if (!launch) return std::make_unique<comm::LocalWorld>(num_ranks);
  comm::ProcessOptions options{comm::control_options_from()};
  if (flags.heartbeat_seconds > 0)
    options.control.heartbeat_timeout_seconds = flags.heartbeat_seconds;
  if (flags.listen_everywhere) options.control.listen_everywhere = true;
  return comm::make_process_world(*launch, num_ranks, options);
}

}  // namespace piper::cli
