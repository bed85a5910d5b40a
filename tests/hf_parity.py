#!/usr/bin/env python3
"""Logits and every gradient of tiny random models against transformers.

usage: hf_parity.py PROBE [--keep DIR]
       hf_parity.py --write DIR     the cases for a device alone, for a machine without transformers (parity_case.py)

For every family that Piper trains: transformers builds the model with random weights and saves it; the probe
(tests/hf_parity_probe.cpp) loads what was saved and computes. Required: logits within 1e-4, every gradient tensor
within 1e-3 of its norm, all in fp32. Six families of mixtures in sizes that a GPU's kernels take are computed in bf16
too, on the processor and on the device that stands in for a GPU: logits and gradients within twice the error of
transformers' own bf16. Exit code 77 (skipped) without transformers.

The auxiliary loss, added on request, is equal to 1e-6 and so are all gradients where layers and sequences route alike, and where there
is one of each; where every expert is as probable the loss is. What it is apart elsewhere is printed, not required (docs/numerics.md,
"Whose coefficient").

Multi-token prediction, which transformers has not: its layers beyond the model's own, joined here by hand.
"""

import argparse
import copy
import json
import os
import pathlib
import shutil
import sys
import tempfile

from switches import skip

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
try:
    import torch
    import transformers
    from parity_case import compare
    from safetensors.torch import load_file
except ImportError as error:
    skip(error)

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
# As some of the others, in multiples of eight: rows of 16 bytes in bf16, heads that fused kernels take.
ALIGNED = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=96, num_key_value_heads=4)
LATENT = dict(kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16)
DEVICE_CASES = {name: (CASES[of][0], {**CASES[of][1], **ALIGNED, **options}) for name, of, options in [
    ("mixtral_device", "mixtral", dict(num_key_value_heads=2, intermediate_size=48, num_local_experts=4)),
    ("qwen3_moe_device", "qwen3_moe", dict(num_key_value_heads=2, moe_intermediate_size=32, num_experts=8, mlp_only_layers=[])),
    ("olmoe_device", "olmoe", dict()),
    ("qwen2_moe_device", "qwen2_moe", dict(num_key_value_heads=2, moe_intermediate_size=32, num_experts=8, mlp_only_layers=[])),
    ("deepseek_v2_device", "deepseek_v2", dict(q_lora_rank=24, **LATENT)),
    ("deepseek_v3_device", "deepseek_v3", dict(q_lora_rank=24, n_routed_experts=8, **LATENT)),
]}
SEQUENCES, SEQUENCE = 3, 29
# In bf16 a token may choose another expert than in fp32: enough tokens that their share says more than chance.
DEVICE_SEQUENCES, DEVICE_SEQUENCE = 12, 48
MTP_WEIGHT = 0.6
# Case: whose model, how many modules.
MTP = {"deepseek_v3_mtp": ("deepseek_v3", 2), "qwen3_moe_mtp": ("qwen3_moe", 1), "olmoe_tied_mtp": ("olmoe_tied", 2)}


def route_alike(model):
    """Every layer sees the embedding alone, and has the first one's router."""
    first = model.model.layers[0]
    for layer in model.model.layers:
        for name, parameter in layer.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.zero_()
        layer.post_attention_layernorm.weight.copy_(first.post_attention_layernorm.weight)
        layer.mlp.gate.weight.copy_(first.mlp.gate.weight)


def route_evenly(model):
    for layer in model.model.layers:
        layer.mlp.gate.weight.zero_()


# Case: whose model, how many layers, of which kind, and what docs/numerics.md claims to be equal: everything, the loss, nothing.
ANY = lambda model: None
AUXILIARY = {f"{kind}_{layers}": ("mixtral" if layers < 8 else "olmoe", layers, kind, prepare, claimed)
             for kind, prepare, claimed in [("alike", route_alike, "all"), ("even", route_evenly, "loss"), ("drawn", ANY, "nothing")]
             for layers in (2, 4, 8)}
AUXILIARY["one_of_each"] = ("mixtral", 1, "alike", ANY, "all")


class Module(torch.nn.Module):
    """What a module of multi-token prediction has beside its layer (DeepSeek-V3, eq. 21-23; names as released)."""

    def __init__(self, model):
        super().__init__()
        norm, hidden, epsilon = type(model.model.norm), model.config.hidden_size, model.config.rms_norm_eps
        self.enorm, self.hnorm, self.shared_head = norm(hidden, epsilon), norm(hidden, epsilon), torch.nn.Module()
        self.shared_head.norm = norm(hidden, epsilon)
        self.eh_proj = torch.nn.Linear(2 * hidden, hidden, bias=False)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.add_((0.3 if "norm" in name else 0.05) * torch.randn_like(parameter))


def loss_of(model, modules, tokens, targets):
    """Logits of the model's own head; the loss with that of all modules. Their layers are the last ones of `model`."""
    own = model.config.num_hidden_layers - len(modules)
    layers, model.model.layers, model.config.num_hidden_layers = model.model.layers, model.model.layers[:own], own
    state = model.model(input_ids=tokens).last_hidden_state
    model.model.layers, model.config.num_hidden_layers = layers, own + len(modules)
    logits = model.lm_head(state)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    embedded = model.model.embed_tokens(tokens)
    for depth, module in enumerate(modules, 1):
        length = tokens.shape[1] - depth
        x = module.eh_proj(torch.cat([module.enorm(embedded[:, depth:]), module.hnorm(state[:, :length])], -1))
        positions = torch.arange(length)[None]
        mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
        x = layers[own + depth - 1](x, attention_mask=mask, position_ids=positions,
                                    position_embeddings=model.model.rotary_emb(x, positions))
        state = module.shared_head.norm(x[0] if isinstance(x, tuple) else x)
        predicted = model.lm_head(state).flatten(0, 1)
        loss = loss + MTP_WEIGHT / len(modules) * torch.nn.functional.cross_entropy(
            predicted, targets[:, depth:].flatten(), ignore_index=-100)
    return logits.flatten(0, 1), loss


def build(family, options, depth):
    torch.manual_seed(20)
    layers = options.get("num_hidden_layers", COMMON["num_hidden_layers"]) + depth
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **options, "num_hidden_layers": layers})
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().train()
    with torch.no_grad():  # norms start as ones: move them, or a forgotten weight would go unnoticed
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if "e_score_correction_bias" in name:
                buffer.copy_(0.3 * torch.randn_like(buffer))
    return model, [Module(model) for _ in range(depth)]


def named(modules, of=lambda parameter: parameter.detach()):
    """The modules' own tensors (or what `of` makes of them) under their names in a file."""
    return {f"model.layers.{COMMON['num_hidden_layers'] + i}.{name}": of(parameter)
            for i, module in enumerate(modules) for name, parameter in module.named_parameters()}


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


def write_case(model, modules, tokens, targets, directory):
    """What the probe reads."""
    (directory / "gradients").mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    config["num_hidden_layers"] -= len(modules)
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:config["num_hidden_layers"]]
    (directory / "config.json").write_text(json.dumps(config))
    index = dict(sequences=tokens.shape[0], sequence=tokens.shape[1], mtp_depth=len(modules), mtp_weight=MTP_WEIGHT, tensors=[])
    tensors = {**load_file(directory / "model.safetensors"), **named(modules)}
    (directory / "model.safetensors").unlink()
    for number, (name, tensor) in enumerate(tensors.items()):
        file = f"{number}.bin"
        tensor.numpy().astype("<f4").tofile(directory / file)
        index["tensors"].append(dict(name=name, shape=list(tensor.shape), file=file))
    tokens.numpy().astype("<i8").tofile(directory / "tokens.bin")
    targets.numpy().astype("<i8").tofile(directory / "targets.bin")
    return index


def computed(model, modules, tokens, targets, directory):
    """Logits and, by name, gradients, by transformers, in fp32 whatever the model computes in. It ends the model."""
    logits, loss = loss_of(model, modules, tokens, targets)
    loss.backward()
    gradients = {**saved_gradients(model, directory / "gradients"), **named(modules, lambda parameter: parameter.grad)}
    return logits.detach().float(), {name: gradient.float() for name, gradient in gradients.items()}


def norm_of(tensors):
    return float(torch.cat([tensor.double().flatten() for tensor in tensors]).norm())


def bf16_error(model, tokens, targets, directory, logits, gradients):
    """How far transformers' bf16 is from `logits` and `gradients`."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    own_logits, own_gradients = computed(model, [], tokens, targets, directory)
    return {"logits": norm_of([own_logits - logits]) / norm_of([logits]),
            "gradients": norm_of([own_gradients[name] - of for name, of in gradients.items()]) / norm_of(gradients.values())}


def decided(model, tokens):
    """The first sequences none of whose choices of experts hangs on rounding: weights that are off by 1e-5 choose the same ones."""
    nudged = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in nudged.parameters():
            parameter.mul_(1 + 1e-5 * torch.randn_like(parameter))
        apart = (nudged(input_ids=tokens).logits - model(input_ids=tokens).logits).abs().amax(dim=(1, 2))
    return tokens[apart < 0.01][:DEVICE_SEQUENCES]


def write_auxiliary(name, directory):
    """The same of a case of the auxiliary loss, which weighs as much as the other."""
    case, layers, kind, prepare, claimed = AUXILIARY[name]
    family, options = CASES[case]
    model, _ = build(family, {**options, "num_hidden_layers": layers, "router_aux_loss_coef": 1.0,
                              "num_experts_per_tok": 3}, 0)
    with torch.no_grad():
        prepare(model)
    tokens = torch.randint(0, model.config.vocab_size, (1 if layers == 1 else SEQUENCES, SEQUENCE))
    if kind == "alike":
        tokens = tokens[:1].expand_as(tokens).contiguous()
    targets = torch.randint(0, model.config.vocab_size, tokens.shape)
    index = write_case(model, [], tokens, targets, directory)
    found = model(input_ids=tokens, output_router_logits=True)
    logits = found.logits.flatten(0, 1)
    (torch.nn.functional.cross_entropy(logits, targets.flatten()) + found.aux_loss).backward()
    index["auxiliary"] = {"loss": found.aux_loss.item(), "claimed": claimed}
    if kind == "even":
        assert abs(found.aux_loss.item() - model.config.num_experts_per_tok) < 1e-5, found.aux_loss
    finish_case(index, logits.detach(), saved_gradients(model, directory / "gradients"), directory)


def finish_case(index, logits, gradients, directory):
    logits.numpy().astype("<f4").tofile(directory / "logits.expected")
    for tensor in index["tensors"]:
        gradients[tensor["name"]].numpy().astype("<f4").tofile(directory / (tensor["file"] + ".expected"))
    shutil.rmtree(directory / "gradients")
    (directory / "index.json").write_text(json.dumps(index))


def write(name, directory):
    """A case's folder: what goes in, and what transformers makes of it."""
    case, depth = MTP.get(name, (name, 0))
    model, modules = build(*{**CASES, **DEVICE_CASES}[case], depth)
    draw = lambda *shape: torch.randint(0, model.config.vocab_size, shape)
    if name in DEVICE_CASES:
        tokens = decided(model, draw(3 * DEVICE_SEQUENCES, DEVICE_SEQUENCE))
        assert len(tokens) == DEVICE_SEQUENCES, f"{name}: {len(tokens)} sequences whose experts are decided"
    else:
        tokens = draw(SEQUENCES, SEQUENCE)
    targets = draw(*tokens.shape)
    targets[0, 3] = targets[2, 28] = -100
    index = write_case(model, modules, tokens, targets, directory)
    again = copy.deepcopy(model) if name in DEVICE_CASES else None
    logits, gradients = computed(model, modules, tokens, targets, directory)
    if again is not None:
        index["bf16"] = bf16_error(again, tokens, targets, directory, logits, gradients)
    finish_case(index, logits, gradients, directory)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("probe", nargs="?")
    parser.add_argument("--keep", help="leave the files here")
    parser.add_argument("--write", metavar="DIR", help="only write the device's cases here")
    arguments = parser.parse_args()
    if arguments.write:
        for name in DEVICE_CASES:
            write(name, pathlib.Path(arguments.write) / name)
        return 0
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as temporary:
        root = pathlib.Path(arguments.keep or temporary)
        good = True
        for name in [*CASES, *DEVICE_CASES, *MTP, *AUXILIARY]:
            (write_auxiliary if name in AUXILIARY else write)(name, root / name)
            on = [("cpu", "fp32")] + ([("cpu", "bf16"), ("stand-in", "fp32"), ("stand-in", "bf16")] if name in DEVICE_CASES else [])
            for device, precision in on:
                found = compare(arguments.probe, root / name, device, precision)
                print(f"{found['said']}   {'ok' if found['passed'] else 'FAILED'}", flush=True)
                good = good and found["passed"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
