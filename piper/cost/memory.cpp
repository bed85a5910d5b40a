#include <piper/cost/memory.h>

namespace piper::cost {

StageWalk::StageWalk(int64_t hidden) { walked_.allocate(hidden); }

void StageWalk::layer_forward(const LayerMemory& layer) {
  walked_.append(layer.forward);
  kept_ += layer.kept;
}

void StageWalk::head(int64_t hidden, const SegmentBytes& head) {
  walked_.allocate(head.tape);
  walked_.touch(head.forward_transient);
  kept_.hidden += hidden;
  kept_.head += head.tape;
  walked_.allocate(hidden);  // the gradient
  walked_.touch(head.backward_transient);
  walked_.release(hidden + head.tape);
}

void StageWalk::transfer(int64_t hidden) {
  walked_.release(hidden);
  walked_.allocate(hidden);
}

void StageWalk::layer_backward(const LayerMemory& layer) { walked_.append(layer.backward); }

}  // namespace piper::cost
