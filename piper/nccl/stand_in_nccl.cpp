#include <nccl.h>
#include <piper/nccl/stand_in_streams.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

namespace piper::nccl::stand_in {

struct Communicator {
  std::string id;
  int rank = 0, size = 0;
  std::atomic<bool> aborted{false};
  std::atomic<int> error{ncclSuccess};
  uint64_t num_groups = 0;
  // The thread that owns it keeps here what is not in its stream yet.
  bool is_connected = false, is_pending = false;
  int64_t polls_left = 0;
  cudaStream_t stream = nullptr;
  std::vector<Message> messages;
};

namespace {

// Where all communicators of the process meet.
struct Board {
  struct Posted {
    Message* message;
    Communicator* owner;
  };
  struct Box {  // from one rank to another
    std::deque<Posted> sends, receives;
  };
  std::mutex mutex;
  std::condition_variable changed;
  // All there ever were: streams may still look at one that was given up.
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::map<std::string, std::set<int>> present;                             // by id: ranks
  std::map<std::tuple<std::string, int, int>, Box> boxes;                   // id, from, to
  std::map<std::tuple<std::string, int, uint64_t, int>, uint64_t> partner;  // id, rank, group, peer
};
Board& board() {
  static Board* all = new Board;
  return *all;
}

// Groups meet one to one. Under the board's lock.
void check_partner(const Board::Posted& one, const Board::Posted& other) {
  for (const auto& [a, b] : {std::pair{&one, &other}, std::pair{&other, &one}}) {
    const auto [found, first] = board().partner.try_emplace(
        {a->owner->id, a->owner->rank, a->message->group, b->owner->rank}, b->message->group);
    if (!first && found->second != b->message->group) fault("a group meets two groups of a peer");
  }
}

void meet(Board::Box& box) {
  while (!box.sends.empty() && !box.receives.empty()) {
    const Board::Posted send = box.sends.front(), receive = box.receives.front();
    box.sends.pop_front();
    box.receives.pop_front();
    check_partner(send, receive);
    if (send.message->size != receive.message->size) {
      fault("sizes differ: " + std::to_string(send.message->size) + " and " +
            std::to_string(receive.message->size));
      send.owner->error = receive.owner->error = ncclInternalError;
    } else {
      std::memcpy(receive.message->bytes, send.message->bytes, send.message->size);
    }
    send.message->done = receive.message->done = true;
  }
}

void post(Communicator& communicator, Message& message) {
  const int from = message.sends ? communicator.rank : message.peer;
  const int to = message.sends ? message.peer : communicator.rank;
  Board::Box& box = board().boxes[{communicator.id, from, to}];
  (message.sends ? box.sends : box.receives).push_back({&message, &communicator});
  meet(box);
}

void withdraw(Communicator& communicator) {
  for (auto& [key, box] : board().boxes)
    for (auto* list : {&box.sends, &box.receives})
      std::erase_if(*list,
                    [&](const Board::Posted& posted) { return posted.owner == &communicator; });
}

int distance(const Communicator& communicator, const Message& message) {
  const int far =
      message.sends ? message.peer - communicator.rank : communicator.rank - message.peer;
  return (far + communicator.size) % communicator.size;
}

struct Group {
  int depth = 0;
  std::vector<Communicator*> touched;
};
thread_local Group group;

void put_into_stream(Communicator& communicator) {
  Queue& queue = queue_of(communicator.stream);
  Work work{.kind = Work::Kind::kGroup, .communicator = &communicator};
  work.messages = queue.spare_list();
  work.messages.assign(communicator.messages.begin(), communicator.messages.end());
  communicator.messages.clear();
  communicator.is_pending = false;
  --queue.num_pending;
  queue.put(std::move(work));
}

ncclResult_t add(Communicator* communicator, Message message, cudaStream_t stream) {
  if (communicator->aborted || communicator->is_pending || !communicator->is_connected) {
    fault("a message for a communicator that is not ready");
    return ncclInvalidUsage;
  }
  if (message.peer < 0 || message.peer >= communicator->size) return ncclInvalidArgument;
  if (group.depth == 0) {
    fault("a message outside of a group");
    return ncclInvalidUsage;
  }
  if (communicator->messages.empty()) group.touched.push_back(communicator);
  communicator->stream = stream;
  message.group = communicator->num_groups;
  communicator->messages.push_back(message);
  return ncclInProgress;
}

}  // namespace

void execute_group(Communicator& communicator, std::vector<Message>& messages) {
  Board& all = board();
  std::unique_lock lock(all.mutex);
  const bool one_by_one = options().one_by_one;
  for (int far = 0; far < (one_by_one ? communicator.size : 1); ++far) {
    for (Message& message : messages)
      if (!communicator.aborted && (!one_by_one || distance(communicator, message) == far))
        post(communicator, message);
    all.changed.notify_all();
    all.changed.wait(lock, [&] {
      return communicator.aborted ||
             std::all_of(messages.begin(), messages.end(), [&](const Message& message) {
               return message.done || (one_by_one && distance(communicator, message) != far);
             });
    });
  }
  if (communicator.aborted) withdraw(communicator);
}

}  // namespace piper::nccl::stand_in

using namespace piper::nccl::stand_in;  // NOLINT: this file is its own end

namespace {
Communicator* own(ncclComm_t handle) { return reinterpret_cast<Communicator*>(handle); }
}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<uint64_t> last{0};
  std::memset(id->internal, 0, sizeof id->internal);
  const uint64_t number = ++last;
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0 || rank < 0 || rank >= size)
    return ncclInvalidArgument;
  const std::lock_guard lock(board().mutex);
  Communicator* communicator =
      board().communicators.emplace_back(std::make_unique<Communicator>()).get();
  communicator->id.assign(id.internal, sizeof id.internal);
  communicator->rank = rank;
  communicator->size = size;
  communicator->polls_left = options().polls_in_progress;
  *handle = reinterpret_cast<ncclComm_t>(communicator);
  board().present[communicator->id].insert(rank);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* state) {
  Communicator* communicator = own(handle);
  *state = static_cast<ncclResult_t>(communicator->error.load());
  if (*state != ncclSuccess) return ncclSuccess;
  if (!communicator->is_connected) {
    const std::lock_guard lock(board().mutex);
    const bool all_here =
        board().present[communicator->id].size() == static_cast<size_t>(communicator->size);
    communicator->is_connected = all_here && communicator->polls_left-- <= 0;
    if (!communicator->is_connected) *state = ncclInProgress;
  } else if (communicator->is_pending) {
    if (communicator->polls_left-- > 0)
      *state = ncclInProgress;
    else
      put_into_stream(*communicator);
  }
  return ncclSuccess;
}

// Waits for nobody, which NCCL may.
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclInProgress; }

ncclResult_t ncclCommDestroy(ncclComm_t handle) { return ncclCommAbort(handle); }

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  Communicator* communicator = own(handle);
  if (communicator->is_pending) {
    communicator->is_pending = false;
    --queue_of(communicator->stream).num_pending;
  }
  {
    const std::lock_guard lock(board().mutex);
    communicator->aborted = true;
    withdraw(*communicator);
  }
  board().changed.notify_all();
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group.depth > 0) return ncclSuccess;
  for (Communicator* communicator : group.touched) {
    communicator->is_pending = true;
    communicator->polls_left = options().polls_in_progress;
    ++communicator->num_groups;
    ++queue_of(communicator->stream).num_pending;
  }
  const bool any = !group.touched.empty();
  group.touched.clear();
  return any ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclSend(const void* bytes, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t handle, cudaStream_t stream) {
  if (type != ncclUint8) return ncclInvalidArgument;
  auto* from = static_cast<std::byte*>(const_cast<void*>(bytes));
  return add(own(handle), {.sends = true, .peer = peer, .bytes = from, .size = count}, stream);
}

ncclResult_t ncclRecv(void* bytes, size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
                      cudaStream_t stream) {
  if (type != ncclUint8) return ncclInvalidArgument;
  return add(own(handle),
             {.sends = false, .peer = peer, .bytes = static_cast<std::byte*>(bytes), .size = count},
             stream);
}

const char* ncclGetErrorString(ncclResult_t status) {
  return status == ncclInternalError ? "internal error" : "an error of NCCL";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }
}
