#include <dlfcn.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/comm/mpi_plugin.h>
#include <piper/comm/network.h>
#include <piper/comm/secret.h>

#include <filesystem>
#include <sstream>

namespace piper::comm {
namespace {

std::filesystem::path plugin_path(Launcher launcher) {
  const char* name = launcher == Launcher::kOpenMpi ? "piper_mpi_openmpi.so" : "piper_mpi_mpich.so";
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

// Open MPI's own plug-ins look for their library's symbols among the global ones. Nothing is ever
// closed: MPI does not start twice in a process.
std::unique_ptr<MpiWire> open_plugin(Launcher launcher) {
  const std::filesystem::path path = plugin_path(launcher);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
  if (library == nullptr)
    throw InvalidInput(
        fmt::format("started by {}, whose plug-in cannot be opened: {}; allowed: a build of Piper "
                    "on a machine with that MPI, or another launcher",
                    to_string(launcher), dlerror()));  // NOLINT(concurrency-mt-unsafe)
  const auto make = reinterpret_cast<MakeMpiWire>(dlsym(library, kMakeMpiWire));
  PIPER_CHECK(make != nullptr, path.string());
  return std::unique_ptr<MpiWire>(make());
}

}  // namespace

std::unique_ptr<MpiWire> open_mpi_wire(Launch& launch, const ControlOptions& options) {
  std::unique_ptr<MpiWire> wire = open_plugin(launch.launcher);
  if (wire->process() != launch.process || wire->num_processes() != launch.num_processes)
    throw InvalidInput(fmt::format(
        "{} says process {} of {}, its library says {} of {}: does it belong to another MPI?",
        to_string(launch.launcher), launch.process, launch.num_processes, wire->process(),
        wire->num_processes()));
  const bool told = !options.interface.empty() || !launch.master_address.empty();
  if (!wire->one_host() && !told)
    throw InvalidInput(
        "the processes run on several hosts; set PIPER_INTERFACE to the interface or address by "
        "which they reach each other, in the environment of all of them");
  std::string place;
  if (launch.process == 0) {
    const std::string address = numeric_address(!options.interface.empty() ? options.interface
                                                : told                     ? launch.master_address
                                                                           : kLoopback);
    const Listener listener = listen_on(address, launch.master_port, options.reach());
    launch.listen_fd = listener.fd;
    place = fmt::format("{} {} {}", address, listener.port,
                        launch.secret.empty() ? random_secret() : launch.secret);
  }
  std::istringstream in(wire->broadcast(place));
  in >> launch.master_address >> launch.master_port;
  std::getline(in >> std::ws, launch.secret);
  return wire;
}

}  // namespace piper::comm
