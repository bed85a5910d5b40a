#include <piper/nn/experts_tokens.h>
#include <piper/nn/host_read.h>
#include <piper/nn/token_routes.h>

#include <algorithm>
#include <vector>

namespace piper::nn {

collective::TokenRoutes chosen_experts(const Routing& routing) {
  // Rows are in the order of experts, so every token finds its own ascending.
  std::vector<std::vector<int32_t>> of_token(static_cast<size_t>(routing.position.size(0)));
  const at::Tensor on_host = read_on_host(routing.token);
  const auto* token = on_host.const_data_ptr<int32_t>();
  for (size_t expert = 0; expert < routing.counts.size(); ++expert)
    for (int64_t i = 0; i < routing.counts[expert]; ++i)
      of_token[static_cast<size_t>(*token++)].push_back(static_cast<int32_t>(expert));
  collective::TokenRoutes routes;
  for (const std::vector<int32_t>& experts : of_token) routes.add(experts);
  return routes;
}

void set_received(Routing& routing, const collective::KnownRoutes& known) {
  routing.received_counts = known.counts();
  const std::vector<int32_t>& rows = known.row_of_copy();
  routing.received_row = at::empty({std::ssize(rows)}, at::kInt);
  std::ranges::copy(rows, routing.received_row.data_ptr<int32_t>());
  const int64_t width = std::min(routing.position.size(1), known.experts_a_member());
  const at::Device device = routing.weights.device();
  routing.received_position =
      put_on_device(copies_of_rows(routing.received_row, known.num_rows(), width), device);
  routing.received_row = put_on_device(routing.received_row, device);
  routing.received_weights = at::empty({std::ssize(rows)}, routing.weights.options());
  routing.g_received_weights = at::empty_like(routing.received_weights);
}

}  // namespace piper::nn
