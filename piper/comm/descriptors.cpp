#include <piper/base/cause.h>
#include <piper/comm/descriptors.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace piper::comm {

void raise_descriptor_limit(int64_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t most = std::min(limit.rlim_max, static_cast<rlim_t>(wanted));
  if (limit.rlim_cur >= most) return;
  limit.rlim_cur = most;
  setrlimit(RLIMIT_NOFILE, &limit);
}

bool is_descriptor_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

std::string descriptor_shortage(int error) {
  if (error == ENOBUFS || error == ENOMEM)
    return std::generic_category().message(error) + ": the machine has no memory for a socket";
  return cause_of(error);
}

}  // namespace piper::comm
