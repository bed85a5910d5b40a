// Bad configs: one line a problem, all of them at once, each naming key, value and what is allowed.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/python_json.h>
#include <piper/model/import.h>

#include <string>

namespace piper::model {
namespace {

const std::string kBase =
    R"("model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
       "num_attention_heads": 4, "vocab_size": 100, "rope_theta": 10000, "rms_norm_eps": 1e-5)";

std::string complaint(const std::string& text) {
  try {
    import_config(parse_json(text, "c.json"), "c.json");
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "accepted";
}

std::string with_base(const std::string& rest) {
  return complaint("{" + kBase + ", " + rest + "}");
}

TEST_CASE("counts that are no counts") {
  const std::string top_k = R"(, "num_experts_per_tok": 2)";
  CHECK(with_base(R"("num_local_experts": 0)" + top_k) ==
        "c.json: 'num_local_experts' is 0; allowed: an integer from 1 to 1048576");
  CHECK(with_base(R"("num_local_experts": -1)" + top_k) ==
        "c.json: 'num_local_experts' is -1; allowed: an integer from 1 to 1048576");
  CHECK(with_base(R"("num_local_experts": 3.7)" + top_k) ==
        "c.json: 'num_local_experts' is 3.7; allowed: an integer from 1 to 1048576");
  CHECK(with_base(R"("num_local_experts": "8")" + top_k) ==
        "c.json: 'num_local_experts' is \"8\"; allowed: an integer from 1 to 1048576");
  CHECK(with_base(R"("num_local_experts": 1e400)" + top_k).find("out of range") !=
        std::string::npos);
  CHECK(with_base(R"("num_local_experts": 9223372036854775808)" + top_k)
            .find("does not fit 64 bits") != std::string::npos);
}

TEST_CASE("more experts a token than there are") {
  CHECK(
      with_base(R"("num_local_experts": 4, "num_experts_per_tok": 5)") ==
      "c.json: 'num_experts_per_tok' is 5; allowed: an integer from 1 to 'num_local_experts' (4)");
  CHECK(with_base(R"("num_experts_per_tok": 2)").find("without a number of experts") !=
        std::string::npos);
  CHECK(with_base(R"("num_local_experts": 4)").find("'num_experts_per_tok' is missing") !=
        std::string::npos);
}

TEST_CASE("an expert's width is not guessed where intermediate_size is the dense layers'") {
  const std::string moe =
      R"("n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1)";
  CHECK(with_base(moe).find("'moe_intermediate_size' is missing") != std::string::npos);
  CHECK(with_base(moe + R"(, "moe_intermedite_size": 8)")
            .find("'moe_intermedite_size' is not understood; did you mean "
                  "'moe_intermediate_size'?") != std::string::npos);
}

TEST_CASE("encoders and towers of images are no causal language models") {
  CHECK(complaint(R"({"model_type": "bert", "hidden_size": 64, "intermediate_size": 96,
      "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100})")
            .find("is 'bert', which Piper cannot describe: an encoder") != std::string::npos);
  CHECK(with_base(R"("patch_size": 14)").find("belongs to a model of images") != std::string::npos);
}

TEST_CASE("all problems of a document come at once, without those that only follow from another") {
  const std::string all =
      complaint(R"({"hidden_size": "a", "num_hidden_layers": 1000000, "num_attention_heads": 0,
      "vocab_size": true, "intermediate_size": 8, "moe_intermediate_size": 8, "num_experts": 0, "num_experts_per_tok": -1, "rope_theta": -1,
      "tie_word_embeddings": "yes", "cross_attention_layers": [1], "mlp_only_layers": [99]})");
  CHECK(all ==
        "c.json: 'hidden_size' is \"a\"; allowed: an integer from 1 to 1048576\n"
        "c.json: 'vocab_size' is true; allowed: an integer from 1 to 67108864\n"
        "c.json: 'num_hidden_layers' is 1000000; allowed: an integer from 1 to 10000\n"
        "c.json: 'num_attention_heads' is 0; allowed: an integer from 1 to 65536\n"
        "c.json: 'num_experts' is 0; allowed: an integer from 1 to 1048576\n"
        "c.json: 'num_experts_per_tok' is -1; allowed: an integer from 1 to 1048576\n"
        "c.json: 'rope_theta' is -1; allowed: a number from 1 to 1000000000000000\n"
        "c.json: 'tie_word_embeddings' is \"yes\"; allowed: true or false\n"
        "c.json: 'cross_attention_layers' is [1]; it may change the model's shapes and is not "
        "supported; --ignore cross_attention_layers reads the config without it");
}

TEST_CASE("contradictions name both keys") {
  CHECK(with_base(R"("num_local_experts": 8, "num_experts": 9, "num_experts_per_tok": 2)") ==
        "c.json: 'num_experts' is 9 but 'num_local_experts' is 8; they mean the same");
  CHECK(with_base(R"("num_key_value_heads": 3)") ==
        "c.json: 'num_key_value_heads' is 3; allowed: a divisor of the 4 attention heads");
  CHECK(with_base(R"("sliding_window": 8, "swa_num_key_value_heads": 3)") ==
        "c.json: 'swa_num_key_value_heads' gives layer 0 3 key heads; allowed: a divisor of its 4 "
        "attention heads");
}

TEST_CASE("a key that changes shapes and is not supported is refused by name") {
  for (const char* rest : {R"("zero_expert_num": 3)", R"("lora_rank": 8)",
                           R"("moe_latent_dim": 32)", R"("cross_attention_layers": [1])"}) {
    const std::string lines = with_base(rest);
    CHECK_MESSAGE(lines.find("it may change the model's shapes and is not supported; --ignore ") !=
                      std::string::npos,
                  std::string(rest));
  }
  CHECK(with_base(R"("mamba_d_state": 0, "lora_rank": null)") == "accepted");
  CHECK(with_base(R"("is_encoder_decoder": true)").find("a decoder alone") != std::string::npos);
}

TEST_CASE(
    "an architecture that Piper does not have is one sentence, whatever else its config holds") {
  const std::string rest = R"(, "num_experts": 0, "unknown_expert_size": 7, "vocab_size": -1)";
  const auto by_name = [&](const std::string& type) {
    return complaint(R"({"model_type": ")" + type + "\"" + rest + "}");
  };
  CHECK(by_name("nemotron_h") ==
        "c.json: 'model_type' is 'nemotron_h', which Piper cannot describe: state-space (Mamba) "
        "layers");
  CHECK(by_name("falcon_mamba").find("state-space (Mamba) layers") != std::string::npos);
  CHECK(by_name("kimi_linear").find("linear attention of another shape") != std::string::npos);
  CHECK(by_name("rwkv7").find("RWKV") != std::string::npos);
  CHECK(by_name("roberta").find("an encoder") != std::string::npos);
  CHECK(with_base(R"("mamba_d_state": 16, "mamba_expand": 2, "lora_rank": 8)") ==
        "c.json: 'mamba_d_state' is 16, which Piper cannot describe: state-space (Mamba) layers");
  CHECK(with_base(R"("layer_types": ["full_attention", "mamba"], "lora_rank": 8)") ==
        "c.json: 'layer_types[1]' is 'mamba', which Piper cannot describe: state-space (Mamba) "
        "layers");
  CHECK(with_base(R"("layer_types": ["full_attention", "linear_attention"])") ==
        "c.json: 'layer_types[1]' is 'linear_attention', which Piper cannot describe: linear "
        "attention "
        "of another shape than the gated delta net's");
  CHECK(with_base(R"("hybrid_override_pattern": "M-M*", "time_step_limit": [0.0, 1.0])") ==
        "c.json: 'hybrid_override_pattern' is 'M-M*', which Piper cannot describe: state-space "
        "(Mamba) "
        "layers");
}

TEST_CASE("a number that is not finite is refused by name where it matters, and nowhere else") {
  const auto python = [](const std::string& rest) {
    try {
      import_config(parse_python_json("{" + kBase + ", " + rest + "}", "c.json"), "c.json");
    } catch (const InvalidInput& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(python(R"("time_step_limit": [0.0, Infinity], "favourite": NaN)") == "accepted");
  CHECK(python(R"("head_dim": Infinity, "partial_rotary_factor": NaN)") ==
        "c.json: 'head_dim' is Infinity; allowed: an integer from 1 to 65536\n"
        "c.json: 'partial_rotary_factor' is NaN; allowed: a number from 0 to 1");
  CHECK(python(R"("lora_rank": NaN)").find("'lora_rank' is NaN; it may change") !=
        std::string::npos);
}

TEST_CASE("documents that are none") {
  CHECK(complaint("") == "c.json: is empty; a JSON document is expected");
  CHECK(complaint("[]") == "c.json: the document is of type array; allowed: an object");
  CHECK(complaint(R"({"a": 1, "a": 2})").find("appears twice") != std::string::npos);
  CHECK(complaint(std::string(1000000, '[')).find("nested deeper") != std::string::npos);
  CHECK(complaint(R"({"text_config": 3})") ==
        "c.json: 'text_config' is an integer; allowed: an object");
  CHECK(complaint("{}").find("'hidden_size' is missing") != std::string::npos);
}

TEST_CASE("sizes that are each allowed and together absurd are refused, not overflown") {
  const std::string lines = complaint(
      R"({"hidden_size": 1048576, "intermediate_size": 67108864, "num_hidden_layers": 10000, "num_attention_heads": 64,
          "num_experts": 1048576, "num_experts_per_tok": 2, "vocab_size": 1000})");
  CHECK(lines.find("allowed: at most 1e17") != std::string::npos);
}

}  // namespace
}  // namespace piper::model
