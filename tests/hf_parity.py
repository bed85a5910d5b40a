#!/usr/bin/env python3
"""Logits and every gradient of tiny random models against transformers.

usage: hf_parity.py PROBE [--keep DIR]

For Mixtral, Qwen3-MoE, OLMoE (tied embeddings too) and the dense Llama and Qwen3: transformers builds the model with
random weights and saves it; the probe (tests/hf_parity_probe.cpp) loads what was saved and computes. Required: logits
within 1e-4, every gradient tensor within 1e-3 of its norm, all in fp32. Exit code 77 (skipped) without transformers.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
try:
    import numpy
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

LOGITS_TOLERANCE = 1e-4    # absolute
GRADIENT_TOLERANCE = 1e-3  # of the tensor's norm

COMMON = dict(hidden_size=48, num_hidden_layers=3, num_attention_heads=6, vocab_size=97, max_position_embeddings=128,
              initializer_range=0.15, bos_token_id=1, eos_token_id=2)
MIXTURE = dict(num_experts_per_tok=2, router_aux_loss_coef=0.0)

CASES = {
    "mixtral": ("Mixtral", dict(num_key_value_heads=2, intermediate_size=40, num_local_experts=5, **MIXTURE)),
    "qwen3_moe": ("Qwen3Moe", dict(num_key_value_heads=3, head_dim=16, intermediate_size=64, moe_intermediate_size=24,
                                   num_experts=7, norm_topk_prob=True, mlp_only_layers=[1], **MIXTURE)),
    "olmoe": ("Olmoe", dict(num_key_value_heads=6, intermediate_size=32, num_experts=8, pad_token_id=None, **MIXTURE)),
    "olmoe_tied": ("Olmoe", dict(num_key_value_heads=2, intermediate_size=32, num_experts=4, pad_token_id=None,
                                 tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=500.0),
                                 **MIXTURE)),
    "qwen2_moe": ("Qwen2Moe", dict(num_key_value_heads=2, intermediate_size=64, moe_intermediate_size=24,
                                   shared_expert_intermediate_size=40, num_experts=6, norm_topk_prob=False,
                                   mlp_only_layers=[0], decoder_sparse_step=1, **MIXTURE)),
    "deepseek_v2": ("DeepseekV2", dict(num_key_value_heads=6, intermediate_size=64, moe_intermediate_size=24,
                                       n_routed_experts=8, n_shared_experts=2, first_k_dense_replace=1, n_group=4,
                                       topk_group=2, topk_method="group_limited_greedy", routed_scaling_factor=1.7,
                                       num_experts_per_tok=3, q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=8,
                                       qk_rope_head_dim=6, v_head_dim=10, max_position_embeddings=128)),
    "deepseek_v2_lite": ("DeepseekV2", dict(num_key_value_heads=6, intermediate_size=64, moe_intermediate_size=24,
                                            n_routed_experts=6, n_shared_experts=1, first_k_dense_replace=1,
                                            topk_method="greedy", routed_scaling_factor=1.0, num_experts_per_tok=2,
                                            q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=8,
                                            qk_rope_head_dim=4, v_head_dim=12, rope_parameters=dict(
                                                rope_type="yarn", rope_theta=10000.0, factor=40.0, beta_fast=32,
                                                beta_slow=1, mscale=0.707, mscale_all_dim=0.707,
                                                original_max_position_embeddings=16))),
    "deepseek_v3": ("DeepseekV3", dict(num_key_value_heads=6, intermediate_size=64, moe_intermediate_size=24,
                                       n_routed_experts=16, n_shared_experts=1, first_k_dense_replace=1, n_group=4,
                                       topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5,
                                       num_experts_per_tok=4, q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=8,
                                       qk_rope_head_dim=6, v_head_dim=8, rope_parameters=dict(
                                           rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32, beta_slow=1,
                                           mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=32))),
    "llama3_rope": ("Llama", dict(num_key_value_heads=3, intermediate_size=80, rope_parameters=dict(
        rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16))),
    "linear_rope": ("Llama", dict(num_key_value_heads=3, intermediate_size=80, attention_bias=True,
                                  rope_parameters=dict(rope_type="linear", rope_theta=500.0, factor=2.5))),
    "qwen2": ("Qwen2", dict(num_key_value_heads=2, intermediate_size=80)),
    "llama": ("Llama", dict(num_key_value_heads=2, intermediate_size=80)),
    "qwen3": ("Qwen3", dict(num_key_value_heads=1, head_dim=12, intermediate_size=80, tie_word_embeddings=True)),
}
SEQUENCES, SEQUENCE = 3, 29


def build(family, options):
    torch.manual_seed(20)
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **options})
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().train()
    with torch.no_grad():  # norms start as ones: move them, or a forgotten weight would go unnoticed
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if "e_score_correction_bias" in name:
                buffer.copy_(0.3 * torch.randn_like(buffer))
    return model


def saved_gradients(model, directory):
    """The gradients under the names and in the shapes of the saved file: save the model with gradients for weights."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad if parameter.grad is not None else torch.zeros_like(parameter))
        for name, buffer in model.named_buffers():
            if "e_score_correction_bias" in name:
                buffer.zero_()  # it only chooses: no gradient
    model.save_pretrained(directory)
    return load_file(directory / "model.safetensors")


def write_case(model, tokens, targets, directory):
    model.save_pretrained(directory)
    index = dict(sequences=SEQUENCES, sequence=SEQUENCE, tensors=[])
    for number, (name, tensor) in enumerate(load_file(directory / "model.safetensors").items()):
        file = f"{number}.bin"
        tensor.numpy().astype("<f4").tofile(directory / file)
        index["tensors"].append(dict(name=name, shape=list(tensor.shape), file=file))
    tokens.numpy().astype("<i8").tofile(directory / "tokens.bin")
    targets.numpy().astype("<i8").tofile(directory / "targets.bin")
    (directory / "index.json").write_text(json.dumps(index))
    return index["tensors"]


def run_case(name, probe, directory):
    model = build(*CASES[name])
    tokens = torch.randint(0, COMMON["vocab_size"], (SEQUENCES, SEQUENCE))
    targets = torch.randint(0, COMMON["vocab_size"], (SEQUENCES, SEQUENCE))
    targets[0, 3] = targets[2, 28] = -100
    tensors = write_case(model, tokens, targets, directory)
    subprocess.run([probe, str(directory)], check=True, timeout=120)

    logits = model(input_ids=tokens).logits.reshape(-1, COMMON["vocab_size"])
    torch.nn.functional.cross_entropy(logits, targets.reshape(-1), ignore_index=-100).backward()
    ours = numpy.fromfile(directory / "logits.bin", "<f4").reshape(logits.shape)
    logits_error = float(numpy.abs(ours - logits.detach().numpy()).max())

    theirs = saved_gradients(model, directory / "gradients")
    worst, worst_name = 0.0, ""
    for tensor in tensors:
        expected = theirs[tensor["name"]].numpy().astype("f8")
        got = numpy.fromfile(directory / (tensor["file"] + ".gradient"), "<f4").reshape(expected.shape)
        error = float(numpy.linalg.norm(got - expected) / max(numpy.linalg.norm(expected), 1e-30))
        if not error <= worst:
            worst, worst_name = error, tensor["name"]
    good = logits_error <= LOGITS_TOLERANCE and worst <= GRADIENT_TOLERANCE
    print(f"{name:11} logits {logits_error:.1e} (<= {LOGITS_TOLERANCE:.0e})   {len(tensors)} gradients, worst "
          f"{worst:.1e} of its norm (<= {GRADIENT_TOLERANCE:.0e}) {worst_name}   {'ok' if good else 'FAILED'}")
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("probe")
    parser.add_argument("--keep", help="leave the files here")
    arguments = parser.parse_args()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as temporary:
        root = pathlib.Path(arguments.keep or temporary)
        good = True
        for name in CASES:
            (root / name / "gradients").mkdir(parents=True, exist_ok=True)
            good = run_case(name, arguments.probe, root / name) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
