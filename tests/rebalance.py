#!/usr/bin/env python3
"""Experts that move between steps, in whole runs with an imposed load: the same losses to the bit as a run whose experts stay, on threads, TCP
processes and MPI; the busiest rank relieved; a run that is killed again and again while experts move goes on as the calm one; bad flags and files
are refused in one line. PIPER_FULL_COUNTS=1 kills 50 times.

  PIPER=build/release/piper tests/rebalance.py --figures   prints step times of larger runs with a hot expert and a hot rank, with and without
  PIPER=build/release/piper tests/rebalance.py --overhead lab 50     what moving costs, on tcp, openmpi, mpich or two nodes of the lab, every 50 steps
  PIPER=build/release/piper tests/rebalance.py --gains here.json   steps of runs whose experts move or have copies, predicted beside measured"""
import json
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from switches import FULL_COUNTS, skip_case
from tiny_run import PIPER, children_of, metrics

STEPS = 24
# A selection bias chooses experts without weighing them: what it is set to imposes the load, and training does not move it (--bias-update 0).
MODEL = {"model_type": "deepseek_v3", "hidden_size": 32, "num_hidden_layers": 2, "first_k_dense_replace": 0, "num_attention_heads": 4,
         "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 6,
         "intermediate_size": 48, "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1,
         "topk_group": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.0,
         "vocab_size": 256, "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": False,
         "hidden_act": "silu"}


def train_command(root, run, *more, steps=STEPS, ep=2, dp=2, sequence=16, batch=8):
    return [PIPER, "train", "--model", str(root / "model.json"), "--data", str(root / "text.txt"), "--cluster", "rtx4090x8", "--precision", "fp32",
            "--pp", "1", "--ep", str(ep), "--dp", str(dp), "--sequence", str(sequence), "--global-batch", str(batch), "--steps", str(steps), "--clip-norm", "0",
            "--bias-update", "0", "--run", str(run), *more]


def run(command, code=0, repeats=()):
    """`repeats`: exit codes that call for another try, twice at most."""
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode not in repeats:
            break
    assert done.returncode == code, f"{' '.join(map(str, command))}: exit code {done.returncode}, not {code}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def impose(weights, bias):
    """Sets every layer's selection bias in an exported folder to these numbers."""
    index = json.loads((weights / "model.safetensors.index.json").read_text())["weight_map"] if (weights / "model.safetensors.index.json").exists() else None
    names = set(index.values()) if index else {path.name for path in weights.glob("*.safetensors")}
    found = 0
    for name in names:
        data = bytearray((weights / name).read_bytes())
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        for tensor, entry in header.items():
            if tensor.endswith("e_score_correction_bias"):
                assert entry["dtype"] == "F32", entry
                begin, end = (8 + size + at for at in entry["data_offsets"])
                data[begin:end] = struct.pack(f"<{len(bias)}f", *bias)
                found += 1
        (weights / name).write_bytes(data)
    assert found > 0, "no selection bias in the exported weights"


def write_inputs(root, model, bias, **shape):
    (root / "model.json").write_text(json.dumps(model))
    (root / "text.txt").write_text("".join(f"{n} times {n + 3} is {n * (n + 3)}. " for n in range(2000)))
    run(train_command(root, root / "first", "--export", steps=1, **shape))
    shutil.move(root / "first" / "weights", root / "weights")
    impose(root / "weights", bias)


def launchers():
    yield "threads", []
    yield "TCP", [PIPER, "launch", "-n", "2"]
    for name, program, *flags in (("Open MPI", "mpirun.openmpi", "--oversubscribe", "--allow-run-as-root"), ("MPICH", "mpiexec.mpich")):
        plugin = pathlib.Path(PIPER).resolve().parent / f"piper_mpi_{name.lower().replace(' ', '')}.so"
        if shutil.which(program) and plugin.exists():
            yield name, [program, *flags, "-n", "2"]
        else:
            skip_case(name, f"{program} or {plugin.name} is not there")


def launched(launcher, command):
    return [*launcher, *(command[1:] if launcher[:2] == [PIPER, "launch"] else command)]


def check_same(root):
    """Hot experts 0 and 1 lie on one rank; the first decision parts them."""
    weights = ["--weights", str(root / "weights")]
    run(train_command(root, root / "still", *weights))
    still = metrics(root / "still")
    for name, launcher in launchers():
        for policy in ("threshold:1.2", "random:0.5"):
            folder = root / f"{name}-{policy}"
            run(launched(launcher, train_command(root, folder, *weights, "--rebalance", policy, "--rebalance-every", "4")))
            moved = metrics(folder)
            for a, b in zip(still, moved, strict=True):
                for key in ("loss", "grad_norm", "load_imbalance"):
                    # The norm is a sum over ranks, whose order the experts' places change.
                    assert a[key] == b[key] if key != "grad_norm" else abs(a[key] - b[key]) < 1e-4 * a[key], (name, policy, key, a, b)
            assert sum(line["migrated_experts"] for line in moved) > 0, (name, policy)
            if policy.startswith("threshold"):
                before, after = moved[3]["rank_imbalance"], moved[4]["rank_imbalance"]
                assert moved[4]["migrated_experts"] == 4 and before > 1.7 and after < 1.2, (name, moved[3], moved[4])
    print(f"rebalance: losses equal to the bit; the busiest rank from {before:.2f} to {after:.2f} times the mean")


def check_copies(root):
    """Hot experts 0 and 1 get copies on the other rank: the same losses but for the order of sums, on threads and in processes."""
    weights = ["--weights", str(root / "weights")]
    still = metrics(root / "still")
    for name, launcher in launchers():
        for policy in ("replicate", "shadow"):
            folder = root / f"{name}-{policy}"
            run(launched(launcher, train_command(root, folder, *weights, "--redundant-experts", "4", "--rebalance", policy, "--rebalance-every", "4")))
            copied = metrics(folder)
            for a, b in zip(still, copied, strict=True):
                assert abs(a["loss"] - b["loss"]) < 1e-5 * a["loss"], (name, policy, a, b)
            assert sum(line["migrated_experts"] for line in copied) == 0, (name, policy)
            first, last = copied[0]["rank_imbalance"], copied[-1]["rank_imbalance"]
            assert last < 1.2, (name, policy, first, last)
    print(f"rebalance: copies of hot experts: the busiest rank has {last:.2f} times the mean")


def check_kills(root, zero):
    """kill -9 while experts move before every step; under ZeRO 1 their states in pieces, between four ranks."""
    kills = 25 if FULL_COUNTS else 2
    flags = ["--weights", str(root / "weights"), "--rebalance", "random:1", "--rebalance-every", "1", "--checkpoint-every", "2", "--zero", str(zero)]
    command = lambda folder: launched([PIPER, "launch", "-n", "2"], train_command(root, folder, *flags, dp=4 if zero else 2))
    start = time.monotonic()
    run(command(root / f"calm-{zero}"))
    seconds = time.monotonic() - start
    killed = 0
    folder = root / f"killed-{zero}"
    while killed < kills:
        more = ["--resume"] if (folder / "checkpoints").exists() and any((folder / "checkpoints").glob("step-????????")) else ["--fresh"]
        process = subprocess.Popen([*command(folder), *more], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        until = time.monotonic() + random.uniform(0.2, 0.9) * seconds
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        if process.poll() is None:
            os.killpg(process.pid, 9)
            killed += 1
        process.wait()
        if process.returncode == 0:
            assert [a["loss"] for a in metrics(folder)] == [a["loss"] for a in metrics(root / f"calm-{zero}")]
            shutil.rmtree(folder)
    if folder.exists() and any((folder / "checkpoints").glob("step-????????")):
        last = max(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-????????") if path.is_dir())
        if last < STEPS:
            run([*command(folder), "--resume"])
            lines = metrics(folder)
            assert [(a["loss"], a["migrated_experts"]) for a in lines] == [(a["loss"], a["migrated_experts"]) for a in metrics(root / f"calm-{zero}")]
    print(f"rebalance: ZeRO {zero}: {killed} kills while experts moved, no loss differs")


def check_refused(root):
    def refused(*flags, says):
        said = run(train_command(root, root / "refused", *flags), code=2).strip()
        assert len(said.splitlines()) == 1 and says in said, said
    refused("--rebalance", "thresold:1.3", says="allowed: off, threshold:X")
    refused("--rebalance", "replicate", says="or a strategy with --redundant-experts")
    refused("--rebalance", "price", "--redundant-experts", "2", says="homes of experts that have copies stay")
    refused("--redundant-experts", "3", says="a multiple of --ep 2")
    refused("--redundant-experts", "10", says="at most 8")
    refused("--rebalance", "threshold:1.3", "--rebalance-budget", "1K", says="at least the two experts of an exchange")
    for text, says in (('{"0": [[0, 1, 2, 3], [4, 5, 6]]}', "no rank holds expert 7"), ('{"0": [[0, 1, 2, 3, 3], [4, 5, 6, 7]]}', "rank 0 holds expert 3 twice"),
                       ('{"0": [[0, 1, 2, 3], [4, 5, 6, 7]', "placement.json")):
        (root / "placement.json").write_text(text)
        refused("--expert-placement", str(root / "placement.json"), says=says)


# Large enough that a step is tens of milliseconds on a core.
LARGE = {**MODEL, "hidden_size": 256, "moe_intermediate_size": 512, "intermediate_size": 512, "kv_lora_rank": 64, "q_lora_rank": 64, "qk_nope_head_dim": 32,
         "qk_rope_head_dim": 32, "v_head_dim": 64}
SHAPE = {"sequence": 128, "batch": 8}


def lines_of(folder):
    """Of metrics.jsonl, with what was measured."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(root, policy, every, steps, behind, *more):
    """A run on two processes: the lines of metrics.jsonl, and the processor seconds a step of each process behind step `behind`, which other work on
    the machine does not change: on cores of their own a step takes what the busier of the two needs."""
    folder = root / "run"
    shutil.rmtree(folder, ignore_errors=True)
    lines = folder / "metrics.jsonl"
    process = subprocess.Popen(launched([PIPER, "launch", "-n", "2"], train_command(root, folder, "--weights", str(root / "weights"), "--rebalance", policy,
                                                                                   "--rebalance-every", str(every), *more, steps=steps, **SHAPE)),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first, last = {}, {}
    while process.poll() is None:
        number = lines.read_text().count("\n") if lines.exists() else 0
        for child in children_of(process.pid):
            try:
                now = processor_seconds(child)
            except OSError:
                continue
            if number >= behind:
                first.setdefault(child, (number, now))
                if number <= steps - 1:
                    last[child] = (number, now)
        time.sleep(0.02)
    assert process.returncode == 0
    seconds = sorted((last[c][1] - first[c][1]) / max(1, last[c][0] - first[c][0]) for c in first)
    return lines_of(folder), seconds


def figures(root):
    """What the load costs the busier of two processes, with and without rebalancing; then what moving alone costs."""
    for name, bias in (("balanced", [0] * 8), ("hot experts 0 and 1 on one rank", [2, 2] + [0] * 6), ("hot expert 0", [2] + [0] * 7), ("hot rank", [2] * 4 + [0] * 4)):
        at = root / name.replace(" ", "-")
        at.mkdir()
        write_inputs(at, LARGE, bias, **SHAPE)
        for policy, *more in (("off",), ("threshold:1.05",), ("price",), ("replicate", "--redundant-experts", "2"), ("shadow", "--redundant-experts", "2")):
            lines, seconds = measured(at, policy, 6, 24, 8, *more)
            print(f"{name}, {policy}: {1e3 * seconds[1]:.0f} and {1e3 * seconds[0]:.0f} processor ms a step; busiest rank {lines[0].get('rank_imbalance', 0):.2f} -> "
                  f"{lines[-1].get('rank_imbalance', 0):.2f}; moved {sum(line.get('migrated_experts', 0) for line in lines)} experts", flush=True)
    overhead(root / "balanced", [PIPER, "launch", "-n", "2"], 10)


LAB = [str(pathlib.Path(__file__).resolve().parent.parent / "scripts" / "lab"), "--nodes", "2", "--ranks", "1", "--nic-rate", "200", "--fabric",
       str(pathlib.Path(PIPER).resolve().parent / "piper_fabric"), "--seconds", "900", "--"]
ALL_LAUNCHERS = {"tcp": [PIPER, "launch", "-n", "2"], "lab": LAB,
                 "openmpi": ["mpirun.openmpi", "--oversubscribe", "--allow-run-as-root", "-n", "2"], "mpich": ["mpiexec.mpich", "-n", "2"]}


def overhead(root, launcher, every):
    """What moving alone costs: equally loaded experts that change places at random."""
    for part in (0.1, 1):
        shutil.rmtree(root / "run", ignore_errors=True)
        run(launched(launcher, train_command(root, root / "run", "--weights", str(root / "weights"), "--rebalance", f"random:{part}", "--rebalance-every",
                                             str(every), steps=4 * every + 1, **SHAPE)))
        lines = lines_of(root / "run")
        moved = [line for line in lines if line["migrated_experts"] > 0]
        of_one = statistics.median(line["rebalance_seconds"] for line in moved)
        step = statistics.median(line["step_seconds"] for line in lines)
        print(f"random:{part}: {sum(line['migrated_experts'] for line in moved) / len(moved):.0f} of 16 experts, {sum(line['migrated_bytes'] for line in moved) / len(moved) / 2**20:.1f} MiB "
              f"in a migration of {1e3 * of_one:.1f} ms, median of {len(moved)}; a step {1e3 * step:.0f} ms: every 50 steps that is {100 * of_one / (50 * step):.2f} % of the run", flush=True)


LOADS = (("two hot experts on one rank", (2, 2)), ("one hot expert", (2,)), ("hot rank", None))
ROUNDS = 3
POLICIES = ((0, "threshold:1.05"), (0, "price"), (2, "replicate"), (4, "replicate"), (4, "shadow"))


def gains(root, cluster, launcher):
    """Steps of two ranks, threads or one a node of the lab, under an imposed load, with experts that move or have copies, as parts of a step whose experts stay:
    predicted with the rows that were routed, and measured. Two models, three loads, five policies; in the lab one model, one round. `cluster`: what piper profile has written of this
    machine. A ratio further than 10 % from its prediction, or a measured change of the other sign where it exceeds the noise (how far rounds are apart), ends in exit code 1.
    Of copies it is said, too, what part of an even load they reach: the mean rows of a rank over those of the busiest one."""
    wrong, cases, signs, furthest = 0, 0, 0, 0
    models = (("8 experts, top 2", LARGE), ("16 experts, top 4", {**LARGE, "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256}))
    # A network in user space takes ten times as long as threads do.
    rounds_each, models = (ROUNDS, models) if launcher is None else (1, models[:1])
    for size, model in models:
        experts = model["n_routed_experts"]
        for name, hot in LOADS:
            at = root / f"{experts}-{name.replace(' ', '-')}"
            at.mkdir()
            hot = hot or (2,) * (experts // 2)
            write_inputs(at, model, [*hot, *[0] * (experts - len(hot))], **SHAPE)

            def step(slots, policy):
                shutil.rmtree(at / "run", ignore_errors=True)
                command = train_command(at, at / "run", "--weights", str(at / "weights"), "--redundant-experts", str(slots), "--rebalance", policy,
                                        "--rebalance-every", "4", "--json", steps=24, **SHAPE)
                command[command.index("--cluster") + 1] = cluster
                said = run(launched(launcher, command) if launcher else command, repeats=(3,))  # 3: the lab was disturbed
                compared = json.loads(said[said.index("{"):said.rindex("}") + 1])["comparison"]
                # Behind the decisions of steps 4 and 8.
                lines = lines_of(at / "run")[9:]
                return (compared["predicted_step_seconds"], statistics.median(line["step_seconds"] for line in lines),
                        1 / statistics.median(line.get("rank_imbalance", 1) for line in lines))

            rounds = [[step(*one) for one in ((0, "off"), *POLICIES)] for _ in range(rounds_each)]
            predicted, measured = ([statistics.median(turn[i][side] for turn in rounds) for i in range(1 + len(POLICIES))] for side in (0, 1))
            evenness = [statistics.median(turn[i][2] for turn in rounds) for i in range(1 + len(POLICIES))]
            noise = statistics.median(max(times) - min(times) for times in ([turn[i][1] for turn in rounds] for i in range(1 + len(POLICIES)))) / measured[0]
            noise = max(noise, 0.02) if rounds_each == 1 else noise  # which one round does not show
            print(f"{size}, {name}: {1e3 * predicted[0]:.1f} ms predicted, {1e3 * measured[0]:.1f} ms measured where experts stay; noise {100 * noise:.1f} %", flush=True)
            for (slots, policy), expected, found, even in zip(POLICIES, predicted[1:], measured[1:], evenness[1:], strict=True):
                expected, found = expected / predicted[0], found / measured[0]
                sign = abs(1 - found) < noise or (expected < 1) == (found < 1)
                signs += abs(1 - found) >= noise
                off = found / expected - 1
                cases, furthest = cases + 1, max(furthest, abs(off))
                wrong += abs(off) > 0.1 or not sign
                print(f"  {policy}{f', {slots} slots' if slots else ''}: {expected:.3f} predicted, {found:.3f} measured, {100 * off:+.1f} %, {100 * even:.0f} % of an even load"
                      f"{'' if sign else '; THE OTHER SIGN'}", flush=True)
    print(f"{cases} cases, the furthest {100 * furthest:.1f} % from its prediction; {signs} changes beyond the noise; {wrong} cases beyond 10 % or of the other sign")
    return 1 if wrong else 0


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        if sys.argv[1:] == ["--figures"]:
            return figures(root)
        if sys.argv[1:2] == ["--overhead"]:
            write_inputs(root, LARGE, [0] * 8, **SHAPE)
            return overhead(root, ALL_LAUNCHERS[sys.argv[2]], int(sys.argv[3]))
        if sys.argv[1:2] == ["--gains"]:  # a machine's profile, and where: nothing (threads) or lab
            return gains(root, os.path.abspath(sys.argv[2]), ALL_LAUNCHERS[sys.argv[3]] if len(sys.argv) > 3 else None)
        seed = time.time_ns() % 2**32
        random.seed(seed)
        print(f"seed {seed}")
        write_inputs(root, MODEL, [2, 2, 0, 0, 0, 0, 0, 0])
        check_same(root)
        check_copies(root)
        for zero in (0, 2):
            check_kills(root, zero)
        check_refused(root)


if __name__ == "__main__":
    sys.exit(main())
