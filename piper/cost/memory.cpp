#include <piper/cost/memory.h>

namespace piper::cost {

StageWalk::StageWalk(int64_t hidden) { walked_.allocate(hidden); }

void StageWalk::layer_forward(const LayerMemory& layer) {
  walked_.append(layer.forward);
  kept_ += layer.kept;
}

void StageWalk::head_forward(const HeadCost& head) {
  walked_.allocate(head.head.tape);
  walked_.touch(head.head.forward_transient);
  kept_.hidden += head.hidden_bytes;
  kept_.head += head.head.tape;
}

void StageWalk::join_forward(const HeadCost& module) {
  walked_.allocate(module.hidden_bytes);
  walked_.touch(module.join.forward_transient);
}

void StageWalk::head_backward(const HeadCost& head, bool is_joined) {
  walked_.allocate(head.gradient_bytes);
  walked_.touch(head.head.backward_transient);
  walked_.release(head.head.tape + (is_joined ? 0 : head.hidden_bytes));
  if (head.gradient_bytes == head.hidden_bytes) return;  // else gathered
  walked_.allocate(head.hidden_bytes);
  walked_.release(head.gradient_bytes);
}

void StageWalk::join_backward(const HeadCost& module, const HeadCost& before) {
  walked_.allocate(before.hidden_bytes);
  walked_.touch(module.join.backward_transient);
  walked_.release(module.hidden_bytes + 2 * before.hidden_bytes);
}

void StageWalk::transfer(int64_t hidden) {
  walked_.release(hidden);
  walked_.allocate(hidden);
}

void StageWalk::layer_backward(const LayerMemory& layer) { walked_.append(layer.backward); }

}  // namespace piper::cost
