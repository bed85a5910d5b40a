#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/checkpoint/model_fingerprint.h>

namespace piper::checkpoint {
namespace {

model::Model two_layers() {
  model::Model model;
  model.hidden = 8;
  model.layers.resize(2);
  return model;
}

}  // namespace

TEST_CASE("the fingerprint sees what a model computes, not its name or how it begins") {
  model::Model model = two_layers();
  const std::string before = model_fingerprint(model);
  CHECK(before.size() == 2 + 64);
  model.name = "renamed";
  model.initializer_range = 0.5;
  CHECK(model_fingerprint(model) == before);
  model.layers[1].feed_forward.top_k = 4;
  const std::string routed = model_fingerprint(model);
  CHECK(routed != before);
  model.rope.theta = 5e5;
  CHECK(model_fingerprint(model) != routed);
}

TEST_CASE("the fingerprint sees every number of a rotary scaling and of the routers' losses") {
  using Change = void (*)(model::Model&);
  const std::string before = model_fingerprint(two_layers());
  for (const Change change : {
           +[](model::Model& m) { m.rope.interleaved = true; },
           +[](model::Model& m) { m.rope.factor = 8; },
           +[](model::Model& m) { m.rope.original_positions = 8; },
           +[](model::Model& m) { m.rope.beta_fast = 31; },
           +[](model::Model& m) { m.rope.beta_slow = 2; },
           +[](model::Model& m) { m.rope.mscale = 1; },
           +[](model::Model& m) { m.rope.mscale_all_dim = 1; },
           +[](model::Model& m) { m.rope.attention_factor = 1; },
           +[](model::Model& m) { m.rope.truncate = false; },
           +[](model::Model& m) { m.rope.low_frequency = 2; },
           +[](model::Model& m) { m.rope.high_frequency = 8; },
           +[](model::Model& m) { m.router_aux_coefficient = 0.01; },
           +[](model::Model& m) { m.balancing_loss = model::BalancingLoss::kJoinedLayers; },
           +[](model::Model& m) { m.router_z_coefficient = 0.01; },
           +[](model::Model& m) { m.final_norm = false; },
           +[](model::Model& m) { m.layers[1].attention.chunked = true; },
           +[](model::Model& m) { m.layers[0].feed_forward.router_scales = true; },
       }) {
    model::Model changed = two_layers();
    change(changed);
    CHECK(model_fingerprint(changed) != before);
  }
}

TEST_CASE("a fingerprint of an earlier Piper is taken where it tells enough, and that is said") {
  // What Piper 0.1 wrote for this model.
  const std::string saved = "7bd16eb330ec82d3e31a2f8dd822f11236399fd19bd9ec119498bc533e20cd27";
  model::Model model = two_layers();
  CHECK(has_fingerprint(model, saved));
  CHECK(has_fingerprint(model, model_fingerprint(model)));
  CHECK(left_open(model, model_fingerprint(model), "step-00000002").empty());
  CHECK(left_open(model, saved, "step-00000002").find("taken to be this run's") !=
        std::string::npos);
  model.rope.theta = 5e5;
  CHECK_FALSE(has_fingerprint(model, saved));
}

TEST_CASE("a fingerprint of an earlier Piper is refused for a model with a rotary scaling") {
  model::Model model = two_layers();
  model.rope.scaling = "linear";
  const std::string saved = "36e134d11e6dbed9d041d430377b2b644eb3c916e7c7d273c294a73df310250d";
  CHECK(has_fingerprint(model, saved));
  CHECK_THROWS_AS(left_open(model, saved, "step-00000002"), InvalidInput);
  CHECK(left_open(model, model_fingerprint(model), "step-00000002").empty());
}

}  // namespace piper::checkpoint
