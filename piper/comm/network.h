// Addresses of this machine, as texts. A port listens on one named address, never on all of them.
#pragma once

#include <string>

namespace piper::comm {

constexpr const char* kLoopback = "127.0.0.1";

// "10.1.0.7" or "::1" for an address, an interface ("eth0"), or a host's name. Throws InvalidInput
// naming the interfaces there are. What stands for all interfaces is refused however it is written
// ("0.0.0.0", "0", "::", "::ffff:0.0.0.0", a host's name with such an address, ""): the address is
// judged, not the text.
std::string numeric_address(const std::string& name);

enum class Reach { kOneAddress, kEverywhere };

// A socket that listens on `port` of the address (0: any free one), and its port; with kEverywhere
// on all interfaces, over the address's protocol. Throws InvalidInput when the port is taken or the
// address is none of this machine's. The caller closes it.
struct Listener {
  int fd = -1;
  int port = 0;
};
Listener listen_on(const std::string& numeric, int port, Reach reach = Reach::kOneAddress);

// Throws InvalidInput when the socket listens on all interfaces although `reach` is one address.
void check_reach(int fd, Reach reach);

std::string host_name();

}  // namespace piper::comm
