#!/usr/bin/env python3
"""Whole runs with multi-token prediction: memory and order as predicted, resumed bit by bit and on other meshes, weights
out and in again, and nothing changed where its loss counts nothing."""
import json
import pathlib
import shutil
import subprocess
import tempfile

from tiny_run import MODEL, PIPER, files, metrics, write_inputs

STEPS = 16
# Large enough for memory to be that of tensors.
LARGER = {**MODEL, "model_type": "deepseek_v3", "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 96,
          "num_attention_heads": 8, "num_key_value_heads": 8, "n_routed_experts": 8, "n_shared_experts": 1,
          "first_k_dense_replace": 1, "q_lora_rank": 64, "kv_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
          "v_head_dim": 24, "n_group": 2, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
          "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
LARGER.pop("num_local_experts")


def train(root, run, mesh, *more, model="model.json", sequence=16, steps=STEPS, code=0):
    pp, ep, dp = mesh
    command = [PIPER, "train", "--model", root / model, "--data", root / "text.txt", "--cluster", "rtx4090x8", "--pp", pp, "--ep", ep,
               "--dp", dp, "--sequence", sequence, "--global-batch", 8, "--steps", steps, "--warmup-steps", 2, "--run", run, *more]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == code, f"{command}: exit code {done.returncode}, not {code}:\n{done.stdout}{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def check_predictions(root):
    worst = 0
    cases = (((1, 1, 1), "1f1b", "none", "fp32", 1), ((2, 2, 2), "1f1b", "none", "fp32", 2), ((2, 1, 2), "gpipe", "full", "fp32", 2),
             ((2, 2, 2), "1f1b", "full", "bf16", 1), ((1, 2, 2), "1f1b", "none", "fp32", 2, "--cp", 2),
             ((2, 2, 1), "zb-h1", "none", "fp32", 1, "--tp", 2, "--sequence-parallel"), ((1, 2, 1), "1f1b", "none", "fp32", 1, "--tp", 2, "--cp", 2),
             ((1, 2, 2), "1f1b", "none", "fp32", 2, "--zero", 3), ((2, 1, 2), "zb-h1", "none", "bf16", 1, "--zero", 2))
    for i, (mesh, schedule, recompute, precision, depth, *axes) in enumerate(cases):
        run = root / f"predicted-{i}"
        out = json.loads(train(root, run, mesh, "--precision", precision, "--schedule", schedule, "--recompute", recompute, "--mtp-depth", depth,
                               "--json", *axes, model="larger.json", sequence=128, steps=4))
        assert out["same_order_as_simulated"], (mesh, schedule, recompute)
        for rank in out["comparison"]["ranks"]:
            error = abs(rank["predicted_peak_bytes"] - rank["measured_peak_bytes"]) / rank["measured_peak_bytes"]
            assert error < 0.03, f"{mesh} {schedule} {recompute} {precision}: memory of rank {rank['rank']} is off by {error * 100:.1f} %"
            worst = max(worst, error)
    print(f"mtp: memory within {worst * 100:.1f} % of what is predicted, tasks in the simulated order")


def check_resume(root):
    modules = ("--precision", "fp32", "--mtp-depth", 2, "--checkpoint-every", 8)
    whole, same = root / "whole", root / "same"
    train(root, whole, (2, 2, 2), *modules)
    shutil.copytree(whole, same)
    shutil.rmtree(same / f"checkpoints/step-{STEPS:08}")
    shutil.copytree(same, root / "other")
    shutil.copytree(same, root / "none")
    train(root, same, (2, 2, 2), *modules, "--resume")
    assert metrics(same) == metrics(whole) and files(same, STEPS) == files(whole, STEPS), "resumed: another run"
    assert metrics(whole)[-1]["mtp_loss"] < metrics(whole)[0]["mtp_loss"] - 0.3, "the modules learn nothing"
    others = (((1, 1, 1),), ((4, 1, 2),), ((1, 4, 4),), ((1, 2, 2), "--cp", 2), ((2, 2, 1), "--tp", 2))
    for i, (mesh, *axes) in enumerate(others):
        run = root / f"other-{i}"
        shutil.copytree(root / "other", run)
        assert "resharding" in train(root, run, mesh, *modules, *axes, "--resume")
        for key in ("loss", "mtp_loss"):
            worst = max(abs(a[key] - b[key]) for a, b in zip(metrics(run), metrics(whole), strict=True))
            assert worst < 1e-5, f"{mesh}: {key} differs by {worst}"
    assert "was trained with --mtp-depth" in train(root, root / "none", (1, 1, 1), "--precision", "fp32", "--resume", code=2)
    print(f"mtp: resumed with the same bits, and on {len(others)} other meshes with the same losses")


def check_weight(root):
    plain, nothing, depth = (root / name for name in ("plain", "nothing", "depth"))
    train(root, plain, (2, 1, 2), "--precision", "fp32")
    train(root, nothing, (2, 1, 2), "--precision", "fp32", "--mtp-depth", 1, "--mtp-weight", 0)
    train(root, depth, (2, 1, 2), "--precision", "fp32", "--mtp-depth", 1)
    for a, b in zip(metrics(plain), metrics(nothing), strict=True):
        b.pop("mtp_loss")
        b["load_imbalance"] = a["load_imbalance"]  # the module's experts have one of their own
        assert a == b, f"a module without weight changes the run: {a} {b}"
    assert [m["loss"] for m in metrics(plain)] != [m["loss"] for m in metrics(depth)], "the comparison sees nothing"
    assert "mtp_loss" not in metrics(plain)[0]
    print("mtp: with weight 0 every loss and gradient norm is that of a run without")


def tensors(folder):
    """Name, type, shape and bytes of every tensor of a folder of safetensors."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, tensor in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = tensor["data_offsets"]
                found[name] = (tensor["dtype"], tensor["shape"], data[8 + size + begin:8 + size + end])
    return found


def check_weights_folder(root):
    folder = root / "depth/weights"
    train(root, root / "depth", (2, 1, 2), "--precision", "fp32", "--mtp-depth", 1, "--export")
    # With such a learning rate a step moves no weight by a bit: what comes out is what went in.
    still = ("--weights", folder, "--precision", "fp32", "--learning-rate", 1e-30, "--export")
    for run, mesh, more in (("with", (1, 2, 2), ("--mtp-depth", 1)), ("split", (2, 2, 2), ("--mtp-depth", 1)), ("without", (1, 2, 2), ())):
        train(root, root / run, mesh, *still, *more, model="depth/weights", steps=2)
    written = tensors(folder)
    modules = {name for name in written if name.startswith("model.layers.4.")}
    assert modules and tensors(root / "with/weights") == written == tensors(root / "split/weights"), "not the bits that were read"
    assert tensors(root / "without/weights") == {name: t for name, t in written.items() if name not in modules}
    # The same weights on the same tokens, whatever the mesh and whether the modules are there.
    for key, run, other in (("loss", "with", "split"), ("mtp_loss", "with", "split"), ("loss", "with", "without")):
        a, b = (metrics(root / r)[0][key] for r in (run, other))
        assert abs(a - b) < 1e-6 * abs(a), f"{key}: {run} {a}, {other} {b}"
    subprocess.run([PIPER, "eval", "--weights", folder, "--data", root / "text.txt", "--sequence", "16"], check=True, capture_output=True)
    assert "eh_proj" in train(root, root / "two", (1, 1, 1), *still, "--mtp-depth", 2, model="depth/weights", steps=2, code=2)
    print(f"mtp: {len(written)} exported tensors, {len(modules)} of them a module's, are read with and without it, bit by bit")


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        (root / "larger.json").write_text(json.dumps(LARGER))
        check_predictions(root)
        check_resume(root)
        check_weight(root)
        check_weights_folder(root)


if __name__ == "__main__":
    main()
