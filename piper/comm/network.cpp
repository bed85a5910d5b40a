#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <piper/base/error.h>
#include <piper/base/printable.h>
#include <piper/comm/descriptors.h>
#include <piper/comm/network.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>

namespace piper::comm {
namespace {

// With the scope of a link-local address ("fe80::1%eth0"), which cannot be listened on without.
std::string text_of(const sockaddr* address) {
  std::array<char, NI_MAXHOST> text{};
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  if (getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  return text.data();
}

// Whether a socket bound to it hears every interface: of IPv6 ::, and the forms that carry an IPv4
// address (::ffff:0.0.0.0; ::0.0.0.0 is ::), whatever their scope.
bool is_wildcard(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == htonl(INADDR_ANY);
  if (address->sa_family != AF_INET6) return false;
  const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  in_addr_t four = 0;
  std::memcpy(&four, &six.s6_addr[12], sizeof four);
  return IN6_IS_ADDR_UNSPECIFIED(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && four == htonl(INADDR_ANY));
}

struct Interfaces {
  std::set<std::string> names;
  std::string address;  // of the one that was asked for; IPv4 first
};

Interfaces find_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw IoError(fmt::format("getifaddrs: {}", std::strerror(errno)));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  Interfaces found;
  for (const int family : {AF_INET, AF_INET6})
    for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
      if (at->ifa_addr == nullptr) continue;
      found.names.insert(at->ifa_name);
      if (at->ifa_addr->sa_family == family && at->ifa_name == name && found.address.empty())
        found.address = text_of(at->ifa_addr);
    }
  return found;
}

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

AddressList look_up(const std::string& name, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) list = nullptr;
  return {list, freeaddrinfo};
}

std::string checked(const std::string& name, const sockaddr* address) {
  if (is_wildcard(address))
    throw InvalidInput(
        fmt::format("'{}' would listen on all interfaces; allowed: one address or interface, for "
                    "instance {} (or --listen-everywhere, which every process then does)",
                    printable(name), kLoopback));
  return text_of(address);
}

void make_wildcard(sockaddr_storage& address) {
  if (address.ss_family == AF_INET)
    reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_ANY);
  else
    reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_any;
}

}  // namespace

std::string numeric_address(const std::string& name) {
  if (const AddressList numeric = look_up(name, AI_NUMERICHOST))
    return checked(name, numeric->ai_addr);
  const Interfaces interfaces = find_interface(name);
  if (!name.empty() && !interfaces.address.empty()) return interfaces.address;
  const AddressList host = look_up(name, 0);
  if (!name.empty() && host != nullptr) return checked(name, host->ai_addr);
  throw InvalidInput(
      fmt::format("'{}' is neither an address nor a host nor an interface of this "
                  "machine; its interfaces: {}",
                  printable(name), fmt::join(interfaces.names, ", ")));
}

Listener listen_on(const std::string& numeric, int port, Reach reach) {
  const AddressList list = look_up(numeric, AI_NUMERICHOST);
  PIPER_CHECK(list != nullptr, numeric);
  checked(numeric, list->ai_addr);
  const auto fail = [&](int fd) {
    const int cause = errno;
    if (fd >= 0) close(fd);
    const char* hint = cause == EADDRINUSE
                           ? "; does another run use this port? PIPER_MASTER_PORT sets another one"
                           : "";
    const std::string problem = fmt::format("cannot listen on {}:{}: {}{}", numeric, port,
                                            descriptor_shortage(cause), hint);
    if (cause == EMFILE || cause == ENFILE) throw IoError(problem);
    throw InvalidInput(problem);
  };
  const int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail(fd);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage address{};
  std::memcpy(&address, list->ai_addr, list->ai_addrlen);
  if (reach == Reach::kEverywhere) make_wildcard(address);
  auto& port_field = list->ai_family == AF_INET
                         ? reinterpret_cast<sockaddr_in*>(&address)->sin_port
                         : reinterpret_cast<sockaddr_in6*>(&address)->sin6_port;
  port_field = htons(static_cast<uint16_t>(port));
  socklen_t size = list->ai_addrlen;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd, generic, size) != 0 || listen(fd, SOMAXCONN) != 0) fail(fd);
  if (getsockname(fd, generic, &size) != 0) fail(fd);
  return {fd, ntohs(port_field)};
}

void check_reach(int fd, Reach reach) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (reach == Reach::kOneAddress && getsockname(fd, generic, &size) == 0 && is_wildcard(generic))
    throw InvalidInput(
        fmt::format("file descriptor {} listens on all interfaces; allowed: one address (or "
                    "--listen-everywhere)",
                    fd));
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace piper::comm
