#!/usr/bin/env python3
"""Predicted beside measured, on this machine: strategies of one model, and one of each further family, in fp32 and bf16.

Memory (peak per rank, 3 %, with the rows that the routers chose) and the order of tasks always have to hold. Step time depends on
how quiet the machine is: it is printed always and has to hold only with --time (median error 20 %, and the planner's choice
within 10 % of the fastest of the eight).

Without --time and without PIPER_FULL_COUNTS=1: six strategies in which every pair of (pp, plain schedule, recomputation, micro-batch)
occurs, one of each further schedule, half the batch, and each further family in one precision.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from switches import FULL_COUNTS

PIPER = os.environ.get("PIPER", "build/release/piper")
PAIRWISE = [  # pp ep dp schedule recompute micro-batch [tp [etp [sequence parallel [cp]]]]
    (1, 2, 4, "1f1b", "none", 2), (1, 4, 4, "gpipe", "full", 1), (2, 2, 2, "1f1b", "full", 1),
    (2, 1, 2, "gpipe", "none", 2), (4, 1, 1, "1f1b", "none", 1), (4, 1, 1, "gpipe", "full", 2),
    (2, 2, 2, "interleaved", "none", 1), (4, 1, 1, "zb-h1", "none", 1), (2, 2, 2, "zb-v", "full", 1),
    (2, 1, 2, "dualpipev", "none", 1), (1, 2, 2, "1f1b", "none", 1, 2), (2, 2, 1, "zb-h1", "full", 2, 2),
    (1, 2, 2, "1f1b", "experts", 2, 2, 2, False), (1, 2, 1, "1f1b", "none", 1, 1, 1, True, 2), (1, 2, 1, "1f1b", "attention", 2, 2, 1, True, 2),
    (1, 2, 2, "1f1b-pairs", "none", 1),
]
AXES = [  # pp ep dp schedule recompute micro-batch [tp [etp [sequence parallel [cp]]]]
    (1, 1, 4, "gpipe", "none", 1), (1, 2, 4, "1f1b", "none", 2), (1, 4, 4, "gpipe", "full", 1),
    (2, 1, 2, "1f1b", "none", 1), (2, 2, 2, "1f1b", "none", 2), (2, 2, 2, "gpipe", "full", 1),
    (4, 1, 1, "1f1b", "none", 1), (4, 1, 1, "gpipe", "none", 2),
    (2, 2, 2, "interleaved", "none", 1), (2, 1, 2, "interleaved", "full", 1), (4, 1, 1, "zb-h1", "none", 1),
    (2, 2, 2, "zb-h1", "experts", 1), (2, 2, 2, "zb-v", "none", 1), (2, 1, 2, "zb-v", "full", 1),
    (2, 1, 2, "dualpipev", "none", 1), (2, 2, 2, "dualpipev", "attention", 1), (1, 4, 4, "1f1b-pairs", "full", 1),
    (2, 2, 2, "1f1b-pairs", "none", 1), (2, 2, 2, "interleaved-pairs", "experts", 1), (1, 2, 2, "1f1b-pairs", "none", 1, 2, 2),
    (1, 1, 1, "1f1b", "none", 2, 4), (1, 2, 2, "1f1b", "none", 1, 2), (1, 4, 2, "1f1b", "attention", 2, 2),
    (2, 2, 1, "1f1b", "full", 2, 2), (2, 1, 1, "gpipe", "experts", 1, 2),
    (2, 2, 1, "zb-h1", "experts", 2, 2), (2, 2, 1, "interleaved", "none", 1, 2), (2, 2, 2, "zb-v", "none", 1, 2),
    (2, 2, 1, "dualpipev", "attention", 1, 2),
    (1, 2, 4, "1f1b", "none", 1, 1, 2), (1, 2, 2, "gpipe", "full", 2, 2, 2), (2, 1, 2, "zb-h1", "experts", 1, 1, 2),
    (2, 2, 2, "dualpipev", "none", 1, 2, 2), (1, 1, 4, "1f1b", "experts", 2, 1, 4),
    (1, 1, 1, "1f1b", "none", 2, 4, 1, False), (1, 2, 2, "gpipe", "full", 2, 2, 2, False), (2, 2, 1, "zb-h1", "none", 1, 2, 1, False),
]
TENSOR = [  # with divided optimizer states
    (1, 4, 2, "gpipe", "full", 2, 2), (2, 1, 1, "zb-v", "full", 2, 2), (1, 1, 1, "1f1b", "none", 2, 4),
    (1, 2, 2, "1f1b", "none", 2, 2, 2),
]
MIXTURES = [  # orders of a mixture layer
    ((1, 2, 2, "1f1b", "none", 2, 2, 1, False), "monta-o1", 1), ((1, 2, 2, "1f1b", "full", 2, 2, 2, False), "monta-o2", 3),
    ((1, 2, 2, "zb-h1", "experts", 1, 2, 2, False), "parm-s2", 2), ((1, 4, 1, "1f1b", "attention", 2, 4, 1, False), "parm-s1", 1),
    ((1, 2, 2, "1f1b", "experts", 1, 2, 2, False), "parm-baseline", 1), ((1, 4, 4, "1f1b", "full", 2), "fastermoe", 3),
    ((2, 2, 2, "dualpipev", "none", 1), "fastermoe", 2),
]
DIVIDED = [  # gradients
    ((1, 1, 2, "1f1b", "none", 1), "fp32"), ((1, 1, 2, "1f1b", "full", 1), "bf16"), ((1, 2, 2, "1f1b", "experts", 1), "bf16"),
    ((1, 1, 2, "1f1b", "none", 1, 2), "fp32"), ((1, 2, 2, "1f1b", "attention", 1, 2), "bf16"), ((2, 1, 2, "1f1b", "none", 1), "fp32"),
    ((2, 2, 2, "1f1b", "full", 1), "bf16"), ((2, 1, 2, "gpipe", "none", 1), "bf16"), ((2, 1, 2, "interleaved", "none", 1), "fp32"),
    ((2, 1, 2, "zb-h1", "none", 1), "fp32"), ((2, 1, 2, "zb-v", "none", 1), "bf16"), ((2, 2, 2, "dualpipev", "none", 1), "fp32"),
    ((2, 1, 2, "dualpipev", "full", 1), "bf16"), ((1, 1, 2, "1f1b", "none", 1, 1, 1, True, 2), "fp32"),
    ((1, 2, 2, "1f1b-pairs", "none", 1), "fp32"),
]
RANKS = 4  # of the profile
CHUNKS = {"interleaved": 2, "interleaved-pairs": 2, "zb-v": 2, "dualpipev": 2}  # of a rank; else 1


# Further families, small: memory and order only.
COMMON = {"hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 96, "num_hidden_layers": 4,
          "num_attention_heads": 8, "num_key_value_heads": 8, "num_experts_per_tok": 2, "vocab_size": 256,
          "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0,
          "tie_word_embeddings": False}
LATENT = {**COMMON, "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 48,
          "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
FAMILIES = [
    ({"model_type": "deepseek_v3", **LATENT, "q_lora_rank": 64, "v_head_dim": 24, "n_group": 2, "topk_group": 1,
      "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
     (2, 2, 2, "1f1b", "experts", 2, 1)),
    ({"model_type": "deepseek_v2", **LATENT, "q_lora_rank": None, "v_head_dim": 16, "topk_method": "greedy",
      "norm_topk_prob": False, "routed_scaling_factor": 1.0, "scoring_func": "softmax"}, (1, 4, 4, "gpipe", "full", 2, 1)),
    ({"model_type": "qwen2_moe", **COMMON, "num_experts": 8, "shared_expert_intermediate_size": 160,
      "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [1]}, (2, 2, 2, "gpipe", "attention+experts", 1, 1)),
    ({"model_type": "mixtral", **COMMON, "num_local_experts": 8}, (4, 1, 1, "1f1b", "attention", 2, 1)),
    ({"model_type": "deepseek_v3", **LATENT, "q_lora_rank": 64, "v_head_dim": 24, "n_group": 2, "topk_group": 1,
      "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
     (2, 2, 1, "1f1b", "attention", 1, 2)),
    ({"model_type": "qwen2_moe", **COMMON, "num_experts": 8, "shared_expert_intermediate_size": 160,
      "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [1]}, (1, 4, 2, "1f1b", "none", 1, 2)),
]


def piper(*arguments):
    run = subprocess.run([PIPER, *map(str, arguments)], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"predictions: piper {' '.join(map(str, arguments))} failed:\n{run.stderr}")
    return run.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--time", action="store_true", help="step time has to hold, too")
    parser.add_argument("--steps", type=int, help="of one run (default: 3; with --time 10)")
    parser.add_argument("--rounds", type=int, help="runs of each strategy, in turn (default: 1; with --time 3)")
    parser.add_argument("--model", default="piper-10m")
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--global-batch", type=int, help="default: 8; with --time or in full 16")
    parser.add_argument("--cluster", help="what `piper profile` wrote (default: profile now)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.steps = options.steps or (10 if options.time else 3)
    options.rounds = options.rounds or (3 if options.time else 1)
    in_full = options.time or FULL_COUNTS
    options.global_batch = options.global_batch or (16 if in_full else 8)
    strategies = [a for a in (AXES if in_full else PAIRWISE) if ranks_of(a) <= RANKS]
    larger = [a for a in (AXES if in_full else PAIRWISE) if ranks_of(a) > RANKS]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        cluster = options.cluster or folder / "here.json"
        if not options.cluster:
            budget = [] if options.time else ["--budget-seconds", 4]
            piper("profile", "--ranks", RANKS, "--out", cluster, *budget)
        choice = json.loads(piper("plan", "--model", options.model, "--cluster", cluster, "--devices", RANKS, "--sequence",
                                  options.sequence, "--global-batch", options.global_batch, "--json"))["strategies"][0]
        axes = (choice["mesh"]["pp"], choice["mesh"]["ep"], choice["mesh"]["dp"], choice["schedule"],
                choice["recompute"], choice["micro_batch_sequences"], *degrees_of(choice))
        every = strategies if axes in strategies else [*strategies, axes]
        families = []
        for i, (config, family_axes) in enumerate(FAMILIES):
            path = folder / f"{config['model_type']}.json"
            path.write_text(json.dumps(config))
            if in_full or i % 2 == 0:
                families.append(run_one(options, cluster, folder, family_axes, path) | {"family": config["model_type"]})
            # On a described cluster: its times are not those of this machine.
            if in_full or i % 2 == 1:
                families.append(run_one(options, "rtx4090x8", folder, family_axes, path, "bf16") | {"family": config["model_type"] + " bf16"})
        families.append(run_one(options, "rtx4090x8", folder, AXES[4], None, "bf16") | {"family": "bf16"})
        # Optimizer states divided among the ranks that hold the same parameters.
        for axes_, precision in [(AXES[1], "fp32"), (AXES[4], "bf16"), (TENSOR[0], "bf16"), (TENSOR[3], "fp32"),
                                 *([(AXES[0], "bf16"), (AXES[3], "fp32"), *[(a, "fp32") for a in TENSOR]] if in_full else [])]:
            families.append(run_one(options, "rtx4090x8", folder, axes_, None, precision, zero=1) | {"family": f"{precision} zero 1"})
        families += [run_one(options, cluster, folder, axes_, mixture=(schedule, chunks)) | {"family": f"{schedule} {chunks}"}
                     for axes_, schedule, chunks in MIXTURES]
        # Experts that travel as residuals.
        families += [run_one(options, "rtx4090x8", folder, axes_, None, precision, zero=zero, compression=50) | {"family": f"{precision} zero {zero} experts 1/50"}
                     for axes_, precision, zero in [((1, 2, 4, "1f1b", "none", 1), "bf16", 1), ((2, 1, 2, "gpipe", "full", 1), "fp32", 2)]]
        # Experts that are sent their whole capacity, whatever the routers choose.
        families += [run_one(options, "rtx4090x8", folder, axes_, None, precision, more=["--capacity-factor", factor, "--pad-to-capacity"])
                     | {"family": f"{precision} capacity {factor} padded"}
                     for axes_, precision, factor in [((1, 2, 4, "1f1b", "none", 1), "bf16", 0.75), ((2, 2, 2, "zb-h1", "experts", 1), "fp32", 1.25)]]
        # Gradients as well, and weights; schedules with chunks and backwards in two parts among them.
        for axes_, precision in [((1, 2, 4, "1f1b", "none", 1), "fp32"), ((2, 1, 2, "zb-v", "full", 1), "bf16"),
                                 *(DIVIDED if in_full else [])]:
            families += [run_one(options, "rtx4090x8", folder, axes_, None, precision, zero=zero) | {"family": f"{precision} zero {zero}"} for zero in (2, 3)]
        # What lives with the host: optimizer states, and activations of several micro-batches.
        families += [run_offloaded(options, folder, axes_, precision, offload) | {"family": f"{precision} {offload}"}
                     for axes_, precision, offload in [((1, 2, 4, "1f1b", "none", 1), "bf16", "optimizer"),
                                                       ((2, 2, 2, "gpipe", "none", 1), "fp32", "optimizer+activations")]]
        # More ranks than the profile has: their memory and order alone.
        families += [run_one(options, "rtx4090x8", folder, a) | {"family": f"{ranks_of(a)} ranks"} for a in larger]
        # In turn, so that a busy minute of the machine does not fall on one strategy alone.
        rounds = [[run_one(options, cluster, folder, a) for a in every] for _ in range(options.rounds)]
    rows = [merge([turn[i] for turn in rounds]) for i in range(len(every))]
    return judge(options, rows[:len(strategies)], rows[every.index(axes)], families)


def ranks_of(axes):
    pp, _, dp = axes[:3]
    return pp * dp * (axes[6] if len(axes) > 6 else 1)


def degrees_of(choice):
    """What stands at the end of a row: tp, etp and cp without those that are 1 and last, and whether tokens are not divided."""
    tp, etp, cp = (choice["mesh"].get(axis, 1) for axis in ("tp", "etp", "cp"))
    if cp > 1:
        return [tp, etp, tp == 1 or choice.get("sequence_parallel", False), cp]
    if tp > 1 and not choice.get("sequence_parallel", False):
        return [tp, etp, False]
    return [tp, etp] if etp > 1 else [tp] if tp > 1 else []


def merge(runs):
    """One strategy's rounds: medians of the times, the worst of the rest."""
    predicted = statistics.median(r["predicted_step_seconds"] for r in runs)
    measured = statistics.median(r["measured_step_seconds"] for r in runs)
    return {"axes": runs[0]["axes"], "predicted_step_seconds": predicted, "measured_step_seconds": measured,
            "time_error": (predicted - measured) / measured, "memory_error": max(r["memory_error"] for r in runs),
            "memory_is_near": all(r["memory_is_near"] for r in runs),
            "same_order": all(r["same_order"] for r in runs)}


def run_one(options, cluster, folder, axes, model=None, precision="fp32", zero=0, mixture=("plain", 1), offload="none", compression=1, more=()):
    pp, ep, dp, schedule, recompute, micro, tp, etp, divides_tokens, cp = (*axes, *(1, 1, True, 1)[len(axes) - 6:])
    shared = ["--tp", tp, *(["--sequence-parallel"] if divides_tokens else [])] if tp > 1 else []
    shared += ["--etp", etp] if etp > 1 else []
    shared += ["--cp", cp] if cp > 1 else []
    shared += ["--moe-schedule", mixture[0], "--moe-chunks", mixture[1]]
    out = json.loads(piper("train", "--model", model or options.model, "--cluster", cluster, "--pp", pp, "--ep", ep, "--dp", dp, *shared,
                           "--vpp", CHUNKS.get(schedule, 1), "--schedule", schedule, "--recompute", recompute, "--micro-batch", micro, "--sequence",
                           options.sequence, "--global-batch", options.global_batch, "--precision", precision, "--zero", zero, "--offload", offload,
                           "--expert-compression", compression, *more,
                           "--steps", options.steps if cluster != "rtx4090x8" else min(options.steps, 2),  # for its memory and order alone
                           "--run", folder / "-".join(map(str, [model.stem if model else "main", precision, zero, offload, compression, *mixture, *axes, *more])), "--fresh", "--json"))
    comparison = out["comparison"]
    memory = max((abs(r["predicted_peak_bytes"] - r["measured_peak_bytes"]) / r["measured_peak_bytes"]
                  for r in comparison["ranks"]))
    predicted, measured = comparison["predicted_step_seconds"], comparison["measured_step_seconds"]
    return {"axes": axes, "predicted_step_seconds": predicted, "measured_step_seconds": measured,
            "time_error": (predicted - measured) / measured, "memory_error": memory, "memory_is_near": memory <= 0.03,
            "other_machine": cluster == "rtx4090x8",  # then its time says nothing of this one
            "same_order": out["same_order_as_simulated"]}


def run_offloaded(options, folder, axes, precision, offload):
    """How long an activation stays depends on when the thread that copies it gets a core: on a busy machine later than predicted. So the nearest of
    at most four runs."""
    runs = []
    while len(runs) < 4 and not any(r["memory_is_near"] for r in runs):
        runs.append(run_one(options, "rtx4090x8", folder, axes, None, precision, zero=1, offload=offload))
    return min(runs, key=lambda r: r["memory_error"])


def judge(options, rows, chosen, families):
    if options.json:
        print(json.dumps({"strategies": rows, "chosen": chosen, "families": families}, indent=1))
    else:
        print(f"{'pp ep dp schedule recompute micro tp etp sp':<38}{'predicted':>11}{'measured':>11}{'error':>9}{'memory':>9}  order")
        for row in rows + [chosen] + families:
            error = "(GPU)" if row.get("other_machine") else f"{row['time_error']*100:+.1f} %"
            mark = " <- the planner's choice" if row is chosen else f" {row.get('family', '')}"
            print(f"{' '.join(map(str, row['axes'])):<38}{row['predicted_step_seconds']*1e3:>8.1f} ms"
                  f"{row['measured_step_seconds']*1e3:>8.1f} ms"
                  f"{error:>9}"
                  f"{row['memory_error']*100:>7.2f} %  {'same' if row['same_order'] else 'ANOTHER'}{mark}")
    median = statistics.median(abs(r["time_error"]) for r in rows)
    behind = chosen["measured_step_seconds"] / min(r["measured_step_seconds"] for r in rows + [chosen]) - 1
    rows = rows + [chosen] + families
    worst_memory = max(r["memory_error"] for r in rows)
    print(f"step time: median error {median*100:.1f} %; the planner's choice is {behind*100:.1f} % behind the fastest; "
          f"memory: worst error {worst_memory*100:.2f} %", file=sys.stderr)
    failures = [f"{r['axes']}: memory off by {r['memory_error']*100:.1f} %" for r in rows if not r["memory_is_near"]]
    failures += [f"{r['axes']}: tasks ran in another order than simulated" for r in rows if not r["same_order"]]
    if options.time and median > 0.20:
        failures.append(f"median error of step time is {median*100:.1f} %; at most 20 %")
    if options.time and behind > 0.10:
        failures.append(f"the planner's choice is {behind*100:.1f} % behind the fastest; at most 10 %")
    for failure in failures:
        print("predictions: " + failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
