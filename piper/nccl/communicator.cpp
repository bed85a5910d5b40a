#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/nccl/communicator.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace piper::nccl {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Ids travel as text.
std::string to_hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}
std::string from_hex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

// Makes it the thread's device, before anything else is made.
const Library& on_device(const Library& library, int device) {
  library.check(library.cuda.set_device(device), "cudaSetDevice");
  return library;
}

}  // namespace

void Pause::operator()() {
  constexpr int64_t kSpins = 20, kSteps = 20, kShortest = 10, kLongest = 500;  // us
  if (++num_ < kSpins) return;  // to yield costs a whole slice of whoever else computes
  const int64_t us =
      std::min(kLongest, kShortest << std::min<int64_t>((num_ - kSpins) / kSteps, 6));
  std::this_thread::sleep_for(std::chrono::microseconds(us));
}

Meeting::Meeting(std::string what, std::string id, std::vector<Rank> members)
    : what_(std::move(what)),
      id_(std::move(id)),
      members_(std::move(members)),
      executed_(members_.size()) {
  PIPER_CHECK(id_.size() == NCCL_UNIQUE_ID_BYTES, what_);
  for (auto& executed : executed_) executed = -1;
}

std::string Meeting::behind(int64_t num_begun, const std::vector<bool>& is_local) const {
  std::string text;
  for (size_t m = 0; m < members_.size(); ++m)
    if (is_local[m] && executed_[m].load(std::memory_order_relaxed) < num_begun)
      text += fmt::format("{}rank {}", text.empty() ? "" : ", ", members_[m].value);
  return text;
}

std::shared_ptr<Meeting> meet(comm::World& world, const Library& library, const std::string& what,
                              std::vector<Rank> members) {
  std::string id;
  if (world.process() == 0) {
    ncclUniqueId unique{};
    library.check(library.nccl.get_unique_id(&unique), "ncclGetUniqueId");
    id.assign(unique.internal, NCCL_UNIQUE_ID_BYTES);
  }
  const std::vector<std::string> ids = world.share("communicator " + what, to_hex(id));
  return std::make_shared<Meeting>(what, from_hex(ids.front()), std::move(members));
}

Communicator::Communicator(const Library& library, const comm::World& world,
                           std::shared_ptr<Meeting> meeting, int64_t member,
                           const CommunicatorOptions& options)
    : library_(on_device(library, options.device)),
      world_(world),
      meeting_(std::move(meeting)),
      member_(member),
      messages_(library),
      local_(library) {
  const auto num = static_cast<int64_t>(meeting_->members().size());
  PIPER_CHECK(member >= 0 && member < num, fmt::format("member {} of {}", member, num));
  meeting_->come(member_);
  connect(options.connect_timeout_seconds);
}

void Communicator::connect(double timeout_seconds) {
  ncclUniqueId id{};
  std::memcpy(id.internal, meeting_->id().data(), NCCL_UNIQUE_ID_BYTES);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const auto num = static_cast<int>(meeting_->members().size());
  library_.check(
      library_.nccl.comm_init_rank_config(&handle_, num, id, static_cast<int>(member_), &config),
      "ncclCommInitRankConfig");
  const Clock::time_point begin = Clock::now();
  for (Pause pause; !ready(); pause()) {
    if (const std::string why = failure(); !why.empty()) {
      abort();
      throw CommError(fmt::format("{} (in the communicator '{}')", why, meeting_->what()));
    }
    if (seconds_since(begin) < timeout_seconds) continue;
    const std::string missing = meeting_->behind(0, local_members());
    give_up(fmt::format("the communicator '{}' of {} ranks was not complete after {:.1f} s{}",
                        meeting_->what(), num, timeout_seconds,
                        missing.empty() ? "" : "; not there: " + missing));
  }
}

std::vector<bool> Communicator::local_members() const {
  const std::vector<Rank> here = world_.local_ranks();
  std::vector<bool> local;
  for (const Rank rank : meeting_->members())
    local.push_back(std::find(here.begin(), here.end(), rank) != here.end());
  return local;
}

Event Communicator::take_event() {
  if (spare_events_.empty()) return Event(library_);
  Event event = std::move(spare_events_.back());
  spare_events_.pop_back();
  return event;
}

bool Communicator::ready() {
  PIPER_CHECK(!aborted(), "a communicator that was given up: " + meeting_->what());
  ncclResult_t state = ncclSuccess;
  library_.check(library_.nccl.comm_get_async_error(handle_, &state), "ncclCommGetAsyncError");
  if (state == ncclInProgress) return false;
  if (state == ncclSuccess) return true;
  const std::string last = library_.nccl.get_last_error(handle_);
  give_up(fmt::format("NCCL failed in '{}': {}{}", meeting_->what(),
                      library_.nccl.get_error_string(state),
                      last.empty() ? "" : fmt::format(" ({})", last)));
}

void Communicator::give_up(const std::string& why) {
  abort();
  throw CommError(fmt::format("rank {}: {}", rank().value, why));
}

void Communicator::abort() {
  if (handle_ == nullptr) return;
  library_.nccl.comm_abort(handle_);
  handle_ = nullptr;
}

Communicator::~Communicator() {
  constexpr double kLeaveSeconds = 1;
  if (handle_ != nullptr) {
    library_.nccl.comm_finalize(handle_);
    ncclResult_t state = ncclInProgress;
    const Clock::time_point begin = Clock::now();
    for (Pause pause; state == ncclInProgress && seconds_since(begin) < kLeaveSeconds; pause())
      if (library_.nccl.comm_get_async_error(handle_, &state) != ncclSuccess) break;
    if (state == ncclSuccess) {
      library_.nccl.comm_destroy(handle_);
      handle_ = nullptr;
    }
  }
  abort();
}

}  // namespace piper::nccl
