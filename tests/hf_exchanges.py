#!/usr/bin/env python3
"""Training with every exchange of tokens, and with every pipeline schedule, against transformers: three AdamW steps on the same
weights and tokens.

Eight ranks of an expert group on four nodes in two switch groups (rank i on device i of a described machine), fp64:
every second one with gradients summed inside nodes first; then meshes in which ranks share matrices. Bytes on the way are those predicted;
loss and gradient norm of every step are those of transformers and torch.optim.AdamW (whose norms and gates compute in fp32
all the same), and the weights that `piper train --export` writes have moved where theirs have. Skipped without transformers.
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
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, DeepseekV3Config, Qwen2MoeConfig
except ImportError as error:
    skip(error)

PIPER = os.environ.get("PIPER", "build/release/piper")
EXCHANGES = ["flat", "node-aware", "naive", "pairwise", "windowed", "bruck", "2d", "leader", "halo-printed", "halo-switch", "halo",
             "three-level", "halo-dedup"]
CHUNKS = {"halo": 512, "halo-switch": 512, "halo-dedup": 512}
# tp, micro-batches: sequences whole on a rank, and in parts; key heads of several ranks.
SHARED = [(2, 2), (2, 4), (4, 4)]
RANKS, SEQUENCE, WINDOWS, STEPS, RATE = 8, 24, 16, 3, 2e-3
LOSS, NORM, MOVED = 1e-6, 1e-5, 1e-3  # absolute; relative; of a tensor's way, in its norm
SHAPE = dict(vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=64, tie_word_embeddings=False, moe_intermediate_size=24)
CONFIGS = {
    # Shared experts beside eight routed ones, one a rank, three of them a token.
    "qwen2_moe": Qwen2MoeConfig(**SHAPE, num_key_value_heads=2, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False,
                                shared_expert_intermediate_size=40, router_aux_loss_coef=0.0),
    # Two experts a rank, four a token out of two of four groups, sigmoid scores.
    "deepseek_v3": DeepseekV3Config(**SHAPE, num_key_value_heads=4, n_routed_experts=16, num_experts_per_tok=4, kv_lora_rank=16,
                                    q_lora_rank=None, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=12, n_group=4, topk_group=2,
                                    n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=2.5),
}


# On two ranks of a pipeline with four ranks of an expert group each.
CHUNKED = Qwen2MoeConfig(**{**SHAPE, "num_hidden_layers": 4}, num_key_value_heads=2, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False,
                         shared_expert_intermediate_size=40, router_aux_loss_coef=0.0)
SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev", "1f1b-pairs", "interleaved-pairs"]
PIPELINE = ["--pp", 2, "--ep", 4, "--dp", 4, "--num-micro-batches", 4]


def piper(*arguments):
    run = subprocess.run([PIPER, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    if run.returncode:
        sys.exit(f"hf_exchanges: piper {' '.join(map(str, arguments))} failed:\n{run.stderr}")
    return run.stdout


def machine(path):
    """Nodes of two, two nodes a switch group, two groups."""
    described = json.loads(piper("cluster", "dgx-h100", "--json"))
    inner, outer = described["levels"][0], described["levels"][1]
    far = {key: value for key, value in outer.items() if "nic" not in key}
    described["levels"] = [{**inner, "num_members": 2}, {**outer, "name": "group", "num_members": 2, "num_nics": 2},
                           {**far, "name": "system", "num_members": 2}]
    described["compute"]["fp64"] = described["compute"]["fp32"]
    path.write_text(json.dumps(described))
    return path


def corpus(folder):
    """As many tokens as one step takes: every step sees all of them."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 256, (WINDOWS * SEQUENCE + 1,), generator=generator)
    lines = folder / "tokens.jsonl"
    lines.write_text(json.dumps({"tokens": tokens.tolist()}) + "\n")
    piper("data", "build", "--input", lines, "--jsonl-key", "tokens", "--vocabulary", 256, "--out", folder / "corpus")
    return tokens


def load(folder):
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    return {key: value.double() for key, value in tensors.items()}


def trained(model, tokens):
    inputs = tokens[:-1].view(WINDOWS, SEQUENCE)
    targets = tokens[1:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    steps = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets)
        loss.backward()
        squares = sum(p.grad.square().sum().item() for p in model.parameters() if p.grad is not None)
        optimizer.step()
        steps.append((loss.item(), squares ** 0.5))
    return steps


def variants(name):
    """Of one model: what is trained, and its flags."""
    if name == "chunked":
        for schedule in SCHEDULES:
            yield schedule, [*PIPELINE, "--schedule", schedule, *(["--vpp", 2] if schedule.startswith("interleaved") else [])]
        for schedule in ("zb-h1", "zb-v"):
            yield f"{schedule}-tp-2", ["--pp", 2, "--ep", 4, "--dp", 2, "--tp", 2, "--sequence-parallel", "--num-micro-batches", 4, "--micro-batch", 2,
                                       "--schedule", schedule, "--zero", 1]
        return
    for exchange in EXCHANGES if name == "qwen2_moe" else ["flat", "halo", "three-level", "halo-dedup"]:
        chunk = ["--all-to-all-chunk", CHUNKS[exchange]] if exchange in CHUNKS else []
        sums = ["--reduction", "hierarchical"] if EXCHANGES.index(exchange) % 2 else []
        yield exchange, ["--ep", RANKS, "--dp", RANKS, "--num-micro-batches", 2, "--all-to-all", exchange, *chunk, *sums]
    for tp, micro_batches in SHARED:
        yield f"tp-{tp}-{micro_batches}", ["--ep", RANKS, "--dp", RANKS // tp, "--tp", tp, "--sequence-parallel", "--num-micro-batches", micro_batches,
                                             "--micro-batch", WINDOWS * tp // RANKS // micro_batches]
    # Every rank of tp holds all tokens.
    for etp in (1, 2):
        yield f"tp-2-etp-{etp}-all-tokens", ["--ep", 4, "--dp", RANKS // 2, "--tp", 2, "--etp", etp, "--num-micro-batches", 2,
                                             "--micro-batch", WINDOWS * 2 // RANKS // 2]
    for tp, ep in ((1, 4), (2, 4), (2, 2)):
        yield f"etp-2-tp-{tp}-ep-{ep}", ["--ep", ep, "--etp", 2, "--dp", RANKS // tp, *(["--tp", tp, "--sequence-parallel"] if tp > 1 else []),
                                         "--num-micro-batches", 2, "--micro-batch", WINDOWS * tp // RANKS // 2, "--zero", tp - 1]
    # Ranks that share a sequence, alone and with ranks that share matrices.
    for tp in (1, 2):
        yield f"cp-2-tp-{tp}", ["--cp", 2, "--ep", 4, "--dp", RANKS // 2 // tp, *(["--tp", tp, "--sequence-parallel"] if tp > 1 else []),
                                "--num-micro-batches", 2, "--micro-batch", WINDOWS * 2 * tp // RANKS // 2]
    # Weights divided among replicas, alone and with both; and experts with copies.
    yield "zero-3", ["--zero", 3, "--ep", 2, "--dp", RANKS, "--num-micro-batches", 2]
    yield "zero-3-cp-2-tp-2-ep-2", ["--zero", 3, "--cp", 2, "--tp", 2, "--sequence-parallel", "--ep", 2, "--dp", RANKS // 4, "--num-micro-batches", 2,
                                    "--micro-batch", WINDOWS * 4 // RANKS // 2]
    yield "copies", ["--redundant-experts", 4, "--rebalance", "replicate", "--rebalance-every", 1, "--ep", 4, "--dp", RANKS, "--num-micro-batches", 2]


def main():
    for name, config in {**CONFIGS, "chunked": CHUNKED}.items():
        with tempfile.TemporaryDirectory() as directory:
            folder = pathlib.Path(directory)
            torch.manual_seed(1)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float64, experts_implementation="eager").train()
            model.save_pretrained(folder / "weights")
            tokens, cluster = corpus(folder), machine(folder / "machine.json")
            steps = trained(model, tokens)
            model.save_pretrained(folder / "after")
            before, after = load(folder / "weights"), load(folder / "after")
            worst = 0
            num_variants = 0
            for exchange, flags in variants(name):
                run = folder / exchange
                num_variants += 1
                printed = piper("train", "--model", folder / "weights", "--weights", folder / "weights", "--cluster", cluster, *flags,
                                "--sequence", SEQUENCE, "--precision", "fp64", "--data", folder / "corpus", "--steps", STEPS,
                                "--learning-rate", RATE, "--minimum-learning-rate", RATE, "--warmup-steps", 0, "--weight-decay", 0,
                                "--clip-norm", 0, "--bias-update", 0, "--run", run, "--export", "--json")
                traffic = json.loads(printed[printed.index("{"):])["traffic"]
                assert traffic["num_unequal"] == 0, (name, exchange, traffic["num_unequal"])
                lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
                for line, (loss, norm) in zip(lines, steps, strict=True):
                    assert abs(line["loss"] - loss) < LOSS, (name, exchange, line["loss"], loss)
                    assert abs(line["grad_norm"] / norm - 1) < NORM, (name, exchange, line["grad_norm"], norm)
                weights = load(run / "weights")
                assert len(weights) > 20, weights.keys()
                for key, value in weights.items():
                    apart = (value - after[key]).norm() / (after[key] - before[key]).norm().clamp(min=1e-6)
                    assert apart < MOVED, (name, exchange, key, apart)
                    worst = max(worst, apart.item())
            print(f"hf_exchanges: {name}: {num_variants} {'schedules, two of them with tp and ZeRO 1' if name == 'chunked' else 'exchanges and meshes with tp, etp, cp, ZeRO 3 and copies of experts'}, {STEPS} steps as transformers'; the ways of tensors within {worst:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
