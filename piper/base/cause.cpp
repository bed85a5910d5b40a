#include <fmt/format.h>
#include <piper/base/cause.h>
#include <piper/base/units.h>
#include <sys/resource.h>

#include <cerrno>
#include <system_error>

namespace piper {
namespace {

rlim_t soft_limit(__rlimit_resource of) {
  rlimit limit{};
  return getrlimit(of, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

std::string of_memory() {
  const rlim_t most = soft_limit(RLIMIT_AS);
  return most == RLIM_INFINITY ? "the machine or its container (memory.max) has no more"
                               : fmt::format("this process may address {} (ulimit -v)",
                                             format_bytes(static_cast<double>(most)));
}

std::string of_threads() {
  const rlim_t most = soft_limit(RLIMIT_NPROC);
  return fmt::format(
      "no further thread or process: this user may have {} (ulimit -u), and the container "
      "(pids.max) and the machine (kernel.threads-max) have limits, too",
      most == RLIM_INFINITY ? "any number" : std::to_string(most));
}

}  // namespace

std::string cause_of(int error) {
  std::string words = std::generic_category().message(error);
  switch (error) {
    case EMFILE:
      return fmt::format("{}: this process may have {}; raise that with `ulimit -n`", words,
                         soft_limit(RLIMIT_NOFILE));
    case ENFILE:
      return words + ": raise the machine's limit, fs.file-max (sysctl)";
    case EAGAIN:
      return fmt::format("{}: {}", words, of_threads());
    case ENOMEM:
      return fmt::format("{}: {}", words, of_memory());
    default:
      return words;
  }
}

std::string cause_of(const std::exception& error) {
  std::string said = error.what();
  const auto* of_system = dynamic_cast<const std::system_error*>(&error);
  if (of_system == nullptr) return said;
  const std::error_code& code = of_system->code();
  const std::string category = code.category().name();
  if (!category.ends_with("system") && category != "generic") return said;  // asio.system, too
  if (const std::string words = code.message(); said.ends_with(words))
    said.replace(said.size() - words.size(), words.size(), cause_of(code.value()));
  return said;
}

bool may_pass(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
    case EIO:
    case ESTALE:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ETIMEDOUT:
    case EAGAIN:
    case EHOSTDOWN:
    case EREMOTEIO:
    case ENOLCK:
    case ENODEV:
    case ENXIO:
      return true;
    default:
      return false;
  }
}

}  // namespace piper
