#!/usr/bin/env python3
"""Folders of Hugging Face weights, in and out: transformers saves, piper evaluates and exports, transformers loads.

For each trained family: `piper eval` gives the loss of transformers; weights that went through `piper train` with a
learning rate of (next to) nothing on a sharded mesh come back bit by bit; after a real step, transformers on the
exported folder and `piper eval` agree again.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from switches import skip

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
try:
    import torch
    from transformers import (AutoModelForCausalLM, DeepseekV2Config, DeepseekV3Config, MixtralConfig, OlmoeConfig,
                              Qwen2MoeConfig, Qwen3MoeConfig)
except ImportError as error:
    skip(error)

PIPER = os.environ.get("PIPER", "build/release/piper")
SHAPE = dict(vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, num_experts_per_tok=2, max_position_embeddings=128, tie_word_embeddings=False)
LATENT = {**SHAPE, "num_key_value_heads": 4, "n_routed_experts": 4, "moe_intermediate_size": 24, "kv_lora_rank": 16,
          "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "first_k_dense_replace": 1}
CONFIGS = {
    "mixtral": MixtralConfig(**SHAPE, num_local_experts=4),
    "qwen3_moe": Qwen3MoeConfig(**SHAPE, num_experts=4, moe_intermediate_size=24, head_dim=16, norm_topk_prob=True),
    "olmoe": OlmoeConfig(**SHAPE, num_experts=4),
    "qwen2_moe": Qwen2MoeConfig(**SHAPE, num_experts=4, moe_intermediate_size=24, shared_expert_intermediate_size=40,
                                mlp_only_layers=[1]),
    "deepseek_v2": DeepseekV2Config(**LATENT, q_lora_rank=None, v_head_dim=12, topk_method="greedy", n_shared_experts=2),
    "deepseek_v3": DeepseekV3Config(**LATENT, q_lora_rank=24, v_head_dim=16, n_group=2, topk_group=1, n_shared_experts=1,
                                    routed_scaling_factor=2.5),
}
SEQUENCE = 32
# The forwards of these strategies have the same loss; how their ranks are started.
MESHES = [([], ["--ep", 4, "--zero", 3]), ([], ["--pp", 2, "--ep", 2, "--vpp", 2, "--schedule", "zb-v", "--micro-batch", 3]),
          (["launch", "-n", 2], ["--cp", 2, "--etp", 2, "--num-micro-batches", 2])]


def piper(*arguments):
    run = subprocess.run([PIPER, *map(str, arguments)], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"hf_folder: piper {' '.join(map(str, arguments))} failed:\n{run.stderr}")
    return run.stdout


def loss_of(model, text):
    tokens = torch.tensor(list(text))
    windows = (len(tokens) - 1) // SEQUENCE
    inputs = tokens[:windows * SEQUENCE].view(windows, SEQUENCE)
    targets = tokens[1:windows * SEQUENCE + 1].view(windows, SEQUENCE)
    with torch.no_grad():
        logits = model(inputs).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item(), targets.numel()


def check(name, config, folder):
    torch.manual_seed(0)
    original = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for key, parameter in original.named_parameters():
        if "bias" in key:  # zeros would move even by the smallest update
            parameter.data.copy_(0.05 * torch.randn_like(parameter))
    for key, buffer in original.named_buffers():
        if "e_score_correction_bias" in key:
            buffer.copy_(0.05 * torch.randn_like(buffer))
    original.save_pretrained(folder / "in")
    text = folder / "text.txt"
    text.write_bytes(b"To be, or not to be, that is the question: " * 20)

    def compare(model, weights):
        evaluated = json.loads(piper("eval", "--weights", weights, "--data", text, "--sequence", SEQUENCE, "--json"))
        expected, count = loss_of(model, text.read_bytes())
        assert evaluated["tokens"] == count, (evaluated, count)
        assert abs(evaluated["loss"] - expected) < 1e-5, (name, evaluated["loss"], expected)
        for launcher, mesh in MESHES:
            on_mesh = json.loads(piper(*launcher, "eval", "--weights", weights, "--data", text, "--sequence", SEQUENCE, "--json", *mesh))
            assert on_mesh["tokens"] == count and abs(on_mesh["loss"] - expected) < 1e-5, (name, mesh, on_mesh, expected)
        return expected

    before = compare(original, folder / "in")
    common = ["--weights", folder / "in", "--cluster", "rtx4090x8", "--precision", "fp32", "--pp", 2, "--ep", 2,
              "--dp", 2, "--sequence", SEQUENCE, "--global-batch", 4, "--data", text, "--export", "--json"]
    piper("train", *common, "--steps", 1, "--learning-rate", 1e-38, "--bias-update", 0, "--run", folder / "still")
    same = AutoModelForCausalLM.from_pretrained(folder / "still/weights", dtype=torch.float32).eval()
    for key, value in original.state_dict().items():
        assert torch.equal(value, same.state_dict()[key]), f"{name}: {key} changed on its way"
    piper("train", *common, "--steps", 5, "--learning-rate", 1e-2, "--run", folder / "moved")
    moved = AutoModelForCausalLM.from_pretrained(folder / "moved/weights", dtype=torch.float32).eval()
    after = compare(moved, folder / "moved/weights")
    as_trained = json.loads(piper("eval", "--weights", folder / "moved/weights", "--data", text, "--strategy", folder / "moved/strategy.json", "--json"))
    assert abs(as_trained["loss"] - after) < 1e-5, (name, as_trained, after)
    assert after < before - 0.1, f"{name}: training did not lower the loss: {before} -> {after}"
    print(f"hf_folder: {name}: loss {before:.5f} as transformers says; bit-equal after export; trained to {after:.5f}")


def main():
    for name, config in CONFIGS.items():
        with tempfile.TemporaryDirectory() as root:
            check(name, config, pathlib.Path(root))


if __name__ == "__main__":
    main()
