#!/usr/bin/env python3
"""One strategy, one answer: what `plan` says of its best is what `estimate`, `sim` and `compare` say of the file that it writes, and a
trainer that has an exporter takes the plan that was made for it.

    tests/one_answer.py                a sample, for every change
    tests/one_answer.py --all          400 questions of models x clusters x sizes x trainers, drawn with a fixed seed; goes on where it was
                                       interrupted (build/one_answer/done.txt)

Compared to the last digit: step_seconds, closed_form_seconds, mfu. Memory of `sim` is what its simulation finds: within 5 % of the closed form.
Of activations that go to the host the closed form counts what may be on the device at any speed of the copies: there it is a bound.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

PIPER = os.environ.get("PIPER", "build/release/piper")
SAMPLE, ALL = 8, 400
DONE = pathlib.Path("build/one_answer/done.txt")
CLUSTERS = ["dgx-h100", "h800", "dgx-a100", "frontier", "b200", "gb200"]
SIZES = [8, 16, 64, 128, 256]
TRAINERS = ["piper", "piper", "megatron", "megatron-core", "torchtitan", "deepseek", "nanotron", "deepspeed"]
EXPORTERS = {"megatron": "megatron", "megatron-core": "megatron", "torchtitan": "torchtitan", "deepspeed": "deepspeed"}


def run(*arguments):
    return subprocess.run([PIPER, *map(str, arguments)], capture_output=True, text=True)


def answer(*arguments):
    done = run(*arguments, "--json")
    assert done.returncode == 0, (arguments, done.returncode, done.stderr[-400:])
    return json.loads(done.stdout)


def questions(count):
    models = [m["name"] for m in answer("model", "--list")["models"] if not m["name"].startswith("piper-")]
    draw = random.Random(20261123)
    return [(draw.choice(models), draw.choice(CLUSTERS), draw.choice(SIZES), draw.choice(TRAINERS), draw.random() < 0.25) for _ in range(count)]


def check(model, cluster, devices, trainer, runnable, folder):
    """What disagrees, or why there is nothing to compare."""
    file = folder / "s.json"
    asked = ["plan", "--model", model, "--cluster", cluster, "--devices", devices, "--trainer", trainer, "--top", 1, "--out", file]
    planned = run(*asked, *(["--runnable"] if runnable else []), "--json")
    if planned.returncode == 1:
        return "nothing fits"
    if planned.returncode == 2:  # one line that says what would do
        assert planned.stderr.startswith("piper: "), planned.stderr
        return "refused: " + planned.stderr.strip()
    assert planned.returncode == 0, planned.stderr
    planned_best = json.loads(planned.stdout)["strategies"][0]
    best = planned_best["predicted"]
    assert best["trainer"] == trainer, best["trainer"]
    assert not runnable or best["not_runnable"] == [], best["not_runnable"]
    estimated = answer("estimate", "--model", model, "--strategy", file)["predicted"]
    compared = answer("compare", "--model", model, file, file)
    assert compared["speedup"] == 1
    for figure in ("step_seconds", "closed_form_seconds", "mfu", "peak_bytes", "trainer"):
        assert best[figure] == estimated[figure] == compared["a"]["predicted"][figure], (figure, best[figure], estimated[figure])
    simulated = answer("sim", "--model", model, "--strategy", file)
    assert simulated["trainer"] == trainer and simulated["closed_form_seconds"] == best["closed_form_seconds"]
    if best["method"] == "simulation":
        for figure in ("step_seconds", "mfu"):
            assert abs(simulated[figure] / best[figure] - 1) < 1e-9, (figure, simulated[figure], best[figure])
    least = best["peak_bytes"]
    if "activations" in planned_best.get("offload", ""):
        least -= best["memory"]["activations_bytes"]
    assert 0.95 * least < simulated["peak_bytes"] < 1.05 * best["peak_bytes"], (simulated["peak_bytes"], best["peak_bytes"])
    if trainer in EXPORTERS:
        exported = run("export", "--to", EXPORTERS[trainer], "--model", model, "--strategy", file)
        if exported.returncode != 0 and "for which there is no flag" in exported.stderr:
            return "the trainer has no flag for the model"
        assert exported.returncode == 0, exported.stderr
    return "agree"


def check_lengths():
    """A length of a context is the same with a suffix."""
    asked = ["estimate", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--ep", 8, "--dp", 8, "--micro-batch", 1, "--num-micro-batches", 2, "--sequence"]
    assert answer(*asked, "8K") == answer(*asked, 8192)
    assert answer(*asked, "1M")["strategy"]["sequence"] == 1 << 20
    refused = run(*asked, "1X")
    assert refused.returncode == 2 and "1X" in refused.stderr, refused.stderr


def main():
    everything = sys.argv[1:] == ["--all"]
    DONE.parent.mkdir(parents=True, exist_ok=True)
    done = set(DONE.read_text().splitlines()) if everything and DONE.exists() else set()
    check_lengths()
    wrong, counts = [], {}
    for question in questions(ALL if everything else SAMPLE):
        name = " ".join(map(str, question))
        if name in done:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                said = check(*question, pathlib.Path(folder))
            except AssertionError as error:
                wrong.append(f"{name}: {error}")
                print("one_answer:", wrong[-1], flush=True)
                continue
        counts[said.split(":")[0]] = counts.get(said.split(":")[0], 0) + 1
        if said.startswith("refused"):
            print("one_answer:", name, said, flush=True)
        if everything:
            with DONE.open("a") as file:
                file.write(name + "\n")
    print("one_answer:", counts, f"{len(wrong)} disagree", f"({len(done)} before)" if done else "")
    return 1 if wrong or (not counts.get("agree") and not done) else 0


if __name__ == "__main__":
    sys.exit(main())
