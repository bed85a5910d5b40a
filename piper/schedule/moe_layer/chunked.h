// The mixture layer with its tokens cut into chunks: the rows of one chunk travel while another is
// computed (the pipelining degree of Tutel, Hwang et al. 2023; PipeMoE, Shi et al. 2023).
//
//   exchange stream   dispatch 1 | dispatch 2 | dispatch 3 | combine 1 | combine 2 | combine 3
//   compute stream    shared     | experts 1  | experts 2  | experts 3 |           | merge
//
// A dispatch begins when the one before has ended, so that chunk 1 has the wire to itself. All
// dispatches come before the first combine: where exchanges take longer than experts, each combine
// but the last then travels while a dispatch or experts are under way. In the backward gradients go
// the same ways. Where ranks share an expert's matrices, each dispatch is followed by its gather
// over these ranks, beside which the next dispatch travels: MoNTA's O2 (Guo et al. 2024, section
// 3.3) under sequence parallelism. Where ranks divide the rows of the tokens that all of them hold
// (divided_rows.h), each combine is followed by its gather over these, and the next combine begins
// with that gather: O2 and Parm's S2 with SAA.
//
// FasterMoE's smart schedule (He et al. 2022, section 4.2) is the same tasks with other rows: chunk
// c holds those of all tokens that go to the c-th group of peers (strategy::grouped_peers), so that
// a rank's own experts start on what came from its nearest peers while the rest is under way.
//
// The gate chooses for all tokens at once, so capacity, auxiliary loss and counts are those of the
// plain layer. Sums over an expert's rows are taken chunk by chunk.
#pragma once

#include <piper/schedule/layer_kind.h>

namespace piper::schedule {

// From x1 to the program's output, and from its gradient to that of x1, which is returned. Requires
// several chunks, rows (not tokens) that travel, and a mixture of several segments (PIPER_CHECK).
LayerSlot write_chunked_mixture(LayerProgram& program, const LayerKind& kind, LayerSlot x1);

}  // namespace piper::schedule
