#include <piper/base/error.h>
#include <piper/collective/algorithms.h>
#include <piper/collective/halo_dedup_combine.h>
#include <piper/collective/halo_dedup_dispatch.h>
#include <piper/executor/tensor_bytes.h>
#include <piper/executor/token_exchange.h>
#include <piper/nn/token_routes.h>

#include <numeric>

namespace piper::executor {
namespace {

// Messages of weights share their exchange's key: their parts lie beyond all of its own.
constexpr uint32_t kWeightsPart = uint32_t{1} << 31;

}  // namespace

TokenExchange::TokenExchange(comm::Transport& transport, comm::Transport& tensors,
                             comm::Group group, const collective::Topology& topology,
                             int64_t chunk_bytes, comm::Allocate scratch)
    : transport_(transport),
      tensors_(tensors),
      group_(std::move(group)),
      topology_(topology),
      units_(topology, 0),
      chunk_bytes_(chunk_bytes),
      scratch_(std::move(scratch)) {}

collective::Dedup TokenExchange::dedup(int64_t row_count) const {
  return {.row_count = row_count, .num_pieces = shape_.num_pieces};
}

std::unique_ptr<comm::Operation> TokenExchange::start_telling(comm::OperationName name,
                                                              const nn::Routing& routing,
                                                              int64_t row_bytes) {
  const auto num_members = std::ssize(group_.members);
  const int64_t num_tokens = routing.position.size(0);
  shape_ = {.num_tokens = num_tokens,
            .experts_a_member = std::ssize(routing.counts) / num_members,
            .num_pieces = collective::dedup_pieces(chunk_bytes_, num_tokens, row_bytes)};
  told_bytes_.clear();
  heard_bytes_.clear();
  for (int64_t m = 0; m < num_members; ++m) {
    told_bytes_.push_back(collective::told_bytes(group_.index, m, units_, shape_));
    heard_bytes_.push_back(collective::told_bytes(m, group_.index, units_, shape_));
  }
  told_.resize(std::accumulate(told_bytes_.begin(), told_bytes_.end(), size_t{0}));
  heard_.resize(std::accumulate(heard_bytes_.begin(), heard_bytes_.end(), size_t{0}));
  const collective::TokenRoutes experts = nn::chosen_experts(routing);
  known_.emplace(group_.index, units_, shape_, experts);
  std::span<std::byte> left = told_;
  for (int64_t m = 0; m < num_members; ++m) {
    const auto size = static_cast<size_t>(told_bytes_[static_cast<size_t>(m)]);
    collective::tell(experts, known_->own(), group_.index, m, units_, shape_, left.first(size));
    left = left.subspan(size);
  }
  weights_R_.reset();
  return comm::start_all_to_all(transport_, group_, std::move(name), told_, told_bytes_, heard_,
                                heard_bytes_);
}

void TokenExchange::hear(nn::Routing& routing, bool is_new) {
  PIPER_CHECK(known_.has_value(), "tokens travel before their routes were told");
  if (is_new) {
    std::span<const std::byte> left = heard_;
    for (size_t m = 0; m < heard_bytes_.size(); ++m) {
      const auto size = static_cast<size_t>(heard_bytes_[m]);
      known_->hear(static_cast<int64_t>(m), left.first(size));
      left = left.subspan(size);
    }
  }
  nn::set_received(routing, *known_);
  if (is_new)
    weights_R_ = routing.received_weights;
  else
    routing.received_weights = weights_R_;
}

// The copies' weights, or gradients, from every rank to every rank: as rows of the flat exchange,
// one number each.
std::unique_ptr<comm::Operation> TokenExchange::start_weights(const comm::OperationName& name,
                                                              const nn::Routing& routing,
                                                              bool to_experts,
                                                              const at::Tensor& from,
                                                              const at::Tensor& to) {
  const int64_t each = shape_.experts_a_member;
  const auto copies = [&](const std::vector<int64_t>& counts, int64_t member) {
    const auto first = counts.begin() + member * each;
    return std::accumulate(first, first + each, int64_t{0}) * from.element_size();
  };
  collective::MemberSteps steps = collective::all_to_all(
      collective::AllToAll::kNodeAware, group_.index, topology_, [&](int64_t f, int64_t t) {
        const bool sends = f == group_.index;
        const std::vector<int64_t>& counts =
            sends == to_experts ? routing.counts : routing.received_counts;
        return copies(counts, sends ? t : f);
      });
  for (collective::Step& step : steps.steps) step.part += kWeightsPart;
  auto operation = comm::make_exchange(tensors_, group_, name.what, std::move(steps),
                                       bytes_of(from), mutable_bytes_of(to), scratch_);
  operation->start(name.key);
  return operation;
}

std::unique_ptr<comm::Operation> TokenExchange::start_to_experts(comm::OperationName name,
                                                                 const at::Tensor& tokens_TD,
                                                                 at::Tensor& output,
                                                                 nn::Routing* weights) {
  output = at::empty({known_->num_rows(), tokens_TD.size(1)}, tokens_TD.options());
  auto operation = comm::make_exchange(
      tensors_, group_, name.what,
      collective::halo_dedup_dispatch(group_.index, topology_, known_->known(),
                                      dedup(tokens_TD.size(1))),
      bytes_of(tokens_TD), mutable_bytes_of(output), scratch_, element_of(tokens_TD));
  operation->start(name.key);
  if (weights == nullptr) return operation;
  return comm::join(std::move(operation),
                    start_weights(name, *weights, /*to_experts=*/true, weights->weights,
                                  weights->received_weights));
}

std::unique_ptr<comm::Operation> TokenExchange::start_back(comm::OperationName name,
                                                           const at::Tensor& rows_UD,
                                                           at::Tensor& output,
                                                           const nn::Routing& routing,
                                                           at::Tensor* g_weights) {
  const std::vector<int64_t> shape{shape_.num_tokens, rows_UD.size(1)};
  // No row comes back for a token of which every copy was dropped.
  const bool has_dropped = routing.weights.numel() < routing.position.numel();
  output = has_dropped ? at::zeros(shape, rows_UD.options()) : at::empty(shape, rows_UD.options());
  auto operation = comm::make_exchange(
      tensors_, group_, name.what,
      collective::halo_dedup_combine(group_.index, topology_, known_->known(),
                                     dedup(rows_UD.size(1))),
      bytes_of(rows_UD), mutable_bytes_of(output), scratch_, element_of(rows_UD));
  operation->start(name.key);
  if (g_weights == nullptr) return operation;
  *g_weights = at::empty_like(routing.weights);
  weights_R_.reset();  // the micro-batch ends here
  return comm::join(std::move(operation), start_weights(name, routing, /*to_experts=*/false,
                                                        routing.g_received_weights, *g_weights));
}

std::vector<int64_t> TokenExchange::distinct() const {
  return collective::distinct_tokens(known_->own(), units_);
}

}  // namespace piper::executor
