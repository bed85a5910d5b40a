// A routing as routes of tokens, and what a rank has heard of others' routes as its routing.
#pragma once

#include <piper/collective/known_routes.h>
#include <piper/nn/stage.h>

namespace piper::nn {

// By token: the experts that were chosen and not dropped, ascending.
collective::TokenRoutes chosen_experts(const Routing& routing);

// Fills received_counts, received_row and received_position, and makes room for received_weights
// and their gradients.
void set_received(Routing& routing, const collective::KnownRoutes& known);

}  // namespace piper::nn
