// Memory of one rank of a step whose chunks and schedule are any, found by walking the rank's tasks
// in the order in which they are written, without a clock: a message that is sent lives until the
// next compute task has ended, an exchange until a task that waits for it.
//
// memory.h strings together the same lives in closed form where a rank has one chunk and whole
// backwards; this walks the graph, so that it costs as much as writing the rank's part of it.
#pragma once

#include <piper/cost/memory.h>
#include <piper/cost/prices.h>

#include <cstdint>

namespace piper::cost {

// `step`: with the tasks of this rank alone, which have these bytes. At the moment with the most
// live bytes, `activations` is what other micro-batches than that of the task then running have
// kept, `gradients` the buffers of divided ones, `working` all else. Other state, messages and
// in_flight are not filled.
StageMemory walked_memory(const schedule::StepGraph& step, const StepBytes& bytes);

// Micro-batches after which a step of this strategy holds no more than before, or (GPipe) the same
// more with each: what a walk needs to follow. At most num_micro_batches; but for GPipe a multiple
// of pp.
int64_t micro_batches_to_walk(const strategy::Strategy& strategy);

// The memory with `more` micro-batches more than `last` has, which has one more than `before`.
StageMemory with_more(const StageMemory& before, const StageMemory& last, int64_t more);

}  // namespace piper::cost
