// Addresses of this machine, as texts. A port listens on one named address, never on all of them.
#pragma once

#include <string>

namespace piper::comm {

constexpr const char* kLoopback = "127.0.0.1";

// "10.1.0.7" or "::1" for an address, an interface ("eth0"), or a host's name. Throws InvalidInput
// naming the interfaces there are; wildcard addresses are refused.
std::string numeric_address(const std::string& name);

bool is_loopback(const std::string& numeric);

// A socket that listens on `port` of the address (0: any free one), and its port. Throws
// InvalidInput when the port is taken or the address is none of this machine's. The caller closes
// it.
struct Listener {
  int fd = -1;
  int port = 0;
};
Listener listen_on(const std::string& numeric, int port);

std::string host_name();

}  // namespace piper::comm
