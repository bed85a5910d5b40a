// The lab's network as a process: passes every frame between TAP devices in other network
// namespaces through the links of links.h and delivers it when virtual time says so. scripts/lab
// starts it; needs root.
//
//   piper_fabric PREFIX key=value ...
//
// Opens a TAP r0, r1, ... for every rank of a node in the namespaces PREFIX0, PREFIX1, ..., writes
// "ready", and works until its standard input ends; a line "nic_bits=1e6" there gives all NICs
// another rate. Then writes one JSON object: frames, how late they were delivered against their
// time, and what every link carried.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <tests/lab/links.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace piper::lab {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr size_t kMaxFrame = 65536;
constexpr int64_t kEthernetBytes = 14;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

Nanoseconds now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

// In a network namespace of another name until it goes.
class Inside {
 public:
  explicit Inside(const std::string& name) : home_(open("/proc/self/ns/net", O_RDONLY)) {
    const int fd = open(("/run/netns/" + name).c_str(), O_RDONLY);
    if (home_ < 0 || fd < 0 || setns(fd, CLONE_NEWNET) != 0) fail("namespace " + name);
    close(fd);
  }
  ~Inside() {
    if (setns(home_, CLONE_NEWNET) != 0) std::perror("setns");
    close(home_);
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  int home_;
};

int open_tap(const std::string& name_space, const std::string& name) {
  const Inside inside(name_space);
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
  if (fd < 0) fail("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  if (ioctl(fd, TUNSETIFF, &request) != 0) fail("TAP " + name);
  return fd;
}

// "nodes=4", rates in bits a second, times in microseconds.
Layout layout_of(const std::map<std::string, double>& settings) {
  const auto get = [&](const std::string& key) {
    const auto found = settings.find(key);
    if (found == settings.end()) throw std::runtime_error(key + "=... is missing");
    return found->second;
  };
  const auto speed = [&](const std::string& kind) {
    constexpr double kMicrosecond = 1e3;
    return Speed{get(kind + "_bits") / 8,
                 static_cast<Nanoseconds>(get(kind + "_latency") * kMicrosecond),
                 static_cast<Nanoseconds>(get(kind + "_cost") * kMicrosecond)};
  };
  const auto whole = [&](const std::string& key) { return static_cast<int64_t>(get(key)); };
  return {whole("nodes"), whole("ranks"), whole("nics"), whole("rack_nodes"),
          speed("inner"), speed("nic"),   speed("rack")};
}

struct Kind {
  int64_t connection = 0;  // both ports; 0: not TCP
  // Frames of the control channel, and TCP without bytes and without an end (an acknowledgement,
  // the opening of a connection), may arrive before bytes that were sent earlier.
  bool goes_first = false;
};

Kind kind_of(const std::vector<unsigned char>& frame, int64_t size, int64_t control_port) {
  constexpr int64_t kIp = kEthernetBytes, kLeast = kIp + 40;
  constexpr int kTcp = 6, kFinOrReset = 0x05;
  const auto number = [&](int64_t at) { return frame[at] * 256 + frame[at + 1]; };
  if (size < kLeast || number(12) != 0x0800 || frame[kIp + 9] != kTcp) return {};
  const int64_t ip_bytes = (frame[kIp] & 15) * 4, tcp = kIp + ip_bytes;
  if (size < tcp + 20) return {};
  const int64_t source = number(tcp), target = number(tcp + 2);
  const bool is_control = source == control_port || target == control_port;
  const bool is_empty = (frame[tcp + 13] & kFinOrReset) == 0 &&
                        number(kIp + 2) == ip_bytes + (frame[tcp + 12] >> 4) * 4;
  return {source * 65536 + target, is_control || is_empty};
}

class Fabric {
 public:
  Fabric(const std::string& prefix, const Layout& layout, int64_t control_port)
      : layout_(layout),
        control_port_(control_port),
        network_(layout),
        poll_(epoll_create1(0)),
        timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)) {
    if (poll_ < 0 || timer_ < 0) fail("epoll");
    for (int64_t rank = 0; rank < layout.size(); ++rank) {
      const int64_t node = layout.node_of(rank);
      taps_.push_back(open_tap(prefix + std::to_string(node),
                               "r" + std::to_string(rank - node * layout.num_ranks)));
      watch(taps_.back(), rank);
    }
    watch(timer_, layout.size());
    watch(STDIN_FILENO, layout.size() + 1);
  }

  void run() {
    std::array<epoll_event, 64> events{};
    for (;;) {
      set_timer();
      const int count = epoll_wait(poll_, events.data(), events.size(), -1);
      deliver();
      for (int i = 0; i < count; ++i) {
        const auto source = static_cast<int64_t>(events[i].data.u64);
        if (source < layout_.size()) read_frames(source);
        if (source == layout_.size()) clear_timer();
        if (source > layout_.size() && !read_input()) return;
      }
    }
  }

  void report() {
    std::sort(lateness_.begin(), lateness_.end());
    const auto late = [&](double part) {
      if (lateness_.empty()) return 0.0;
      const auto last = static_cast<double>(lateness_.size() - 1);
      return static_cast<double>(lateness_[static_cast<size_t>(part * last)]) * 1e-9;
    };
    std::printf(
        "{\"frames\": %zu, \"lost\": %lld, \"late_median_seconds\": %.9f, \"late_p99_seconds\": "
        "%.9f, \"late_max_seconds\": %.9f, \"links\": [",
        lateness_.size(), static_cast<long long>(num_lost_), late(0.5), late(0.99), late(1));
    bool first = true;
    for (const Link& link : network_.links()) {
      if (link.num_frames == 0) continue;
      std::printf("%s{\"name\": \"%s\", \"frames\": %lld, \"bytes\": %lld}", first ? "" : ", ",
                  link.name.c_str(), static_cast<long long>(link.num_frames),
                  static_cast<long long>(link.num_bytes));
      first = false;
    }
    std::printf("]}\n");
    std::fflush(stdout);
  }

 private:
  using Bytes = std::vector<unsigned char>;

  void watch(int fd, int64_t source) const {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = static_cast<uint64_t>(source);
    if (epoll_ctl(poll_, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll");
  }

  void set_timer() const {
    const Nanoseconds at = network_.next().value_or(0);  // 0: off
    itimerspec time{};
    time.it_value = {at / kSecond, at % kSecond};
    timerfd_settime(timer_, TFD_TIMER_ABSTIME, &time, nullptr);
  }
  void clear_timer() const {
    uint64_t count = 0;
    (void)!read(timer_, &count, sizeof count);
  }
  // False at its end.
  bool read_input() {
    std::array<char, 256> words{};
    const ssize_t size = read(STDIN_FILENO, words.data(), words.size());
    if (size <= 0) return false;
    input_.append(words.data(), static_cast<size_t>(size));
    for (size_t end = input_.find('\n'); end != std::string::npos; end = input_.find('\n')) {
      const std::string line = input_.substr(0, end), key = "nic_bits=", report_line = "report";
      input_.erase(0, end + 1);
      if (line == report_line)
        report();
      else if (line.starts_with(key))
        network_.set_nic_rate(std::stod(line.substr(key.size())) / 8);
      else
        throw std::runtime_error("'" + line + "' is neither " + report_line + " nor " + key +
                                 "RATE");
    }
    return true;
  }

  int64_t take_frame() {
    if (free_.empty()) {
      free_.push_back(static_cast<int64_t>(frames_.size()));
      frames_.emplace_back();
    }
    const int64_t frame = free_.back();
    free_.pop_back();
    return frame;
  }

  // The station with this number is the rank in the address' last two bytes; scripts/lab gives
  // them.
  void read_frames(int64_t from) {
    constexpr int kYield = 16;  // then the others' and what is due
    for (int i = 0; i < kYield; ++i) {
      const ssize_t size = read(taps_[from], buffer_.data(), buffer_.size());
      if (size < kEthernetBytes) return;
      const int64_t to = buffer_[4] * 256 + buffer_[5];
      if (buffer_[0] != 2 || to >= layout_.size() || to == from) continue;  // to all, or to itself
      const int64_t frame = take_frame();
      frames_[frame].assign(buffer_.begin(), buffer_.begin() + size);
      const Kind kind = kind_of(buffer_, size, control_port_);
      network_.enter(now(), {frame, size, from, to, kind.connection, kind.goes_first});
      deliver();
    }
  }

  void deliver() {
    for (;;) {
      const Nanoseconds time = now();
      const std::optional<Delivery> due = network_.pop(time);
      if (!due) return;
      const Bytes& frame = frames_[due->frame.number];
      if (write(taps_[due->frame.to], frame.data(), frame.size()) < 0) ++num_lost_;
      lateness_.push_back(now() - due->at);
      free_.push_back(due->frame.number);
    }
  }

  Layout layout_;
  int64_t control_port_;
  Network network_;
  int poll_, timer_;
  std::vector<int> taps_;
  std::vector<unsigned char> buffer_ = std::vector<unsigned char>(kMaxFrame);
  std::vector<Bytes> frames_;
  std::vector<int64_t> free_;
  std::vector<Nanoseconds> lateness_;
  int64_t num_lost_ = 0;
  std::string input_;  // what of a line has come
};

int run(int argc, char** argv) {
  if (argc < 2) throw std::runtime_error("usage: piper_fabric PREFIX key=value ...");
  std::map<std::string, double> settings;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equal = word.find('=');
    if (equal == std::string::npos) throw std::runtime_error("'" + word + "' is no key=value");
    settings[word.substr(0, equal)] = std::stod(word.substr(equal + 1));
  }
  const auto port = static_cast<int64_t>(settings["control_port"]);
  Fabric fabric(argv[1], layout_of(settings), port);
  std::printf("ready\n");
  std::fflush(stdout);
  fabric.run();
  fabric.report();
  return 0;
}

}  // namespace
}  // namespace piper::lab

int main(int argc, char** argv) {
  try {
    return piper::lab::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "piper_fabric: %s\n", error.what());
    return 1;
  }
}
