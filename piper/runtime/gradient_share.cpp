// ZeRO 2 on one rank: when the gradients of a layer have memory, and what of them stays.
#include <piper/base/error.h>
#include <piper/runtime/player.h>

#include <utility>

namespace piper::runtime {

using graph::Phase;
using graph::Task;
using schedule::SegmentKind;

// Views of the buffer are views of its storage, so they stay what they are.
void give_back(GradientShare& share) {
  c10::StorageImpl* storage = share.whole.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, share.whole.device()));
  storage->set_nbytes(0);
}

void take_again(GradientShare& share) {
  c10::StorageImpl* storage = share.whole.storage().unsafeGetStorageImpl();
  if (storage->nbytes() > 0) return;
  const auto bytes = static_cast<size_t>(share.whole.numel()) * share.whole.element_size();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
  if (share.num_added > 0) share.whole.zero_();
}

// A head's forward adds to its table's gradient.
void Player::open_gradients(const Task& task) {
  if (options_.gradient_shares == nullptr) return;
  const schedule::Segment& segment = step_.segment(task);
  const bool is_head = segment.kind == SegmentKind::kHead;
  if (!graph::is_backward(task.phase) && !(is_head && task.phase == Phase::kForward)) return;
  for (auto& [key, share] : *options_.gradient_shares) {
    const int32_t layer = key.first;
    const bool adds =
        is_head ? layer == -2 || (layer == -1 && model_.tied_embeddings) : layer == segment.layer;
    if (adds) take_again(share);
  }
}

void Player::keep_gradient_share(const Task& task) {
  if (options_.gradient_shares == nullptr) return;
  const schedule::Segment& segment = step_.segment(task);
  GradientShare& share =
      options_.gradient_shares->at({segment.layer, schedule::axis_of(task.kind, segment.kind)});
  const at::Tensor own = share.whole.narrow(0, share.begin, share.sum.numel());
  if (share.num_added++ == 0)
    share.sum.copy_(own);
  else
    share.sum.add_(own);
  give_back(share);
}

}  // namespace piper::runtime
