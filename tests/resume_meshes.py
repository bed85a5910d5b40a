#!/usr/bin/env python3
"""A run that is stopped and resumed: on its own mesh with the bits of one that was not, on any other with its loss."""
import pathlib
import shutil
import subprocess
import tempfile

from tiny_run import PIPER, STEPS, files, metrics, train, write_inputs

BASE = (2, 2, 2)
OTHERS = [(1, 1, 1), (1, 4, 4), (4, 1, 2), (2, 1, 4), (1, 2, 2), (2, 2, 1, 2), (1, 4, 2, 2), (1, 2, 1, 1, 2)]  # pp ep dp, and tp, and cp
TOLERANCE = 1e-5
SETTINGS = [  # pp ep dp tp, and flags: each resumes to its own bits
    ((1, 2, 4), "--zero", "3"),
    ((1, 2, 4), "--zero", "1", "--rebalance", "random:0.5", "--rebalance-every", "2"),
    ((1, 2, 4), "--redundant-experts", "4", "--rebalance", "shadow"),
    ((1, 2, 4), "--zero", "1", "--offload", "optimizer+activations"),
    ((1, 2, 4), "--capacity-factor", "1", "--pad-to-capacity"),
    ((1, 2, 2, 2), "--etp", "2"),
    ((1, 2, 2), "--tp", "2", "--etp", "2", "--moe-schedule", "parm-s1"),  # without sequence parallelism
]


def copy_until(whole, run, step):
    """The run as a crash after the save of `step` would have left it."""
    shutil.copytree(whole, run)
    for folder in (run / "checkpoints").iterdir():
        if int(folder.name.removeprefix("step-")) > step:
            shutil.rmtree(folder)


def largest_difference(run, whole):
    return max(abs(a["loss"] - b["loss"]) for a, b in zip(metrics(run), metrics(whole), strict=True))


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        whole = root / "whole"
        saving = ("--checkpoint-every", "10", "--keep-checkpoints", "9")
        train(root, whole, BASE, *saving)
        for step in (10, 20, 40):
            run = root / f"same-{step}"
            copy_until(whole, run, step)
            out = train(root, run, BASE, *saving, "--resume")
            assert "resharding" not in out, out
            assert metrics(run) == metrics(whole), f"resumed after step {step}: metrics differ"
            assert files(run, STEPS) == files(whole, STEPS), f"resumed after step {step}: final checkpoints differ"
        # Every other mesh goes on with its own bits, too.
        for mesh in OTHERS:
            calm, run = (root / f"{kind}-{'-'.join(map(str, mesh))}" for kind in ("calm", "own"))
            train(root, calm, mesh, *saving)
            copy_until(calm, run, 20)
            out = train(root, run, mesh, *saving, "--resume")
            assert "resuming after step 20" in out and "resharding" not in out, out
            assert metrics(run) == metrics(calm), f"resumed on {mesh}: metrics differ"
            assert files(run, STEPS) == files(calm, STEPS), f"resumed on {mesh}: final checkpoints differ"
        for number, (mesh, *flags) in enumerate(SETTINGS):
            calm, run = (root / f"{kind}-setting-{number}" for kind in ("calm", "own"))
            train(root, calm, mesh, *saving, *flags)
            copy_until(calm, run, 30)
            out = train(root, run, mesh, *saving, *flags, "--resume")
            assert "resuming after step 30" in out, out
            assert metrics(run) == metrics(calm) and files(run, STEPS) == files(calm, STEPS), f"resumed with {flags}: the end differs"
        train(root, root / "waiting", BASE, *saving, "--no-async-save")
        assert files(root / "waiting", STEPS) == files(whole, STEPS), "saving while training goes on changes what is saved"

        worst = 0
        for mesh in OTHERS:
            run = root / "-".join(map(str, mesh))
            copy_until(whole, run, 20)
            out = train(root, run, mesh, *saving, "--resume")
            assert "resharding from pp 2 x ep 2 x dp 2 to pp {} x ep {} x dp {}".format(*mesh) in out, out
            worst = max(worst, largest_difference(run, whole))
        there_and_back = root / "back"
        copy_until(whole, there_and_back, 20)
        train(root, there_and_back, (1, 1, 1), *saving, "--resume", "--stop-after", "30")
        assert "resharding from pp 1 x ep 1 x dp 1 to pp 2 x ep 2 x dp 2" in train(root, there_and_back, BASE, *saving, "--resume")
        worst = max(worst, largest_difference(there_and_back, whole))
        # Schedules with chunks of layers and divided backwards resume what the plain one wrote, and it theirs.
        for schedule in (("interleaved", "--vpp", "2"), ("zb-h1",), ("zb-v",), ("dualpipev",), ("interleaved-pairs", "--vpp", "2")):
            run = root / schedule[0]
            copy_until(whole, run, 20)
            chosen = (*saving, "--schedule", *schedule)
            out = train(root, run, BASE, *chosen, "--resume")
            assert ("resharding from pp 2 x ep 2 x dp 2 to pp 2 x ep 2 x dp 2 x vpp 2" in out) == (schedule[0] != "zb-h1"), out
            worst = max(worst, largest_difference(run, whole))
            back = root / f"{schedule[0]}-back"
            copy_until(run, back, 40)
            train(root, back, BASE, *saving, "--resume")
            worst = max(worst, largest_difference(back, whole))
        assert worst < TOLERANCE, f"losses after another schedule differ by {worst}"

        # An indexed dataset has a place in its shuffled order; that of another mesh is the same.
        subprocess.run([PIPER, "data", "build", "--input", root / "text.txt", "--out", root / "d"], check=True, capture_output=True)
        indexed = ("--data", str(root / "d"))
        train(root, root / "indexed", BASE, *saving, *indexed)
        for mesh in (BASE, (1, 4, 4), (4, 1, 1)):
            run = root / "-".join(map(str, ("indexed", *mesh)))
            copy_until(root / "indexed", run, 20)
            train(root, run, mesh, *saving, *indexed, "--resume")
            if mesh == BASE:
                assert metrics(run) == metrics(root / "indexed"), "the dataset's position is not that of the run that went on"
            worst = max(worst, largest_difference(run, root / "indexed"))

        # Optimizer states divided or not: on the same mesh the bits of the run that was not stopped, from any division to any other.
        divided = ("--zero", "1")
        train(root, root / "divided", BASE, *saving, *divided)
        assert metrics(root / "divided") == metrics(whole), "divided optimizer states train differently"
        for before, name, after in ((whole, "to", divided), (root / "divided", "from", ()), (root / "divided", "on", divided)):
            run = root / f"divided-{name}"
            copy_until(before, run, 20)
            train(root, run, BASE, *saving, *after, "--resume")
            assert metrics(run) == metrics(whole), f"{name} divided optimizer states: metrics differ"
        for mesh in ((1, 4, 4), (1, 2, 4), (4, 1, 1)):
            run = root / "-".join(map(str, ("divided", *mesh)))
            copy_until(root / "divided", run, 20)
            train(root, run, mesh, *saving, *divided, "--resume")
            worst = max(worst, largest_difference(run, whole))

        # bf16: the master weights are what is resharded.
        bf16 = ("--precision", "bf16")
        train(root, root / "bf16", BASE, *saving, *bf16)
        for mesh in ((1, 4, 4), (4, 1, 2)):
            run = root / "-".join(map(str, ("bf16", *mesh)))
            copy_until(root / "bf16", run, 20)
            train(root, run, mesh, *saving, *bf16, "--resume")
            narrow = largest_difference(run, root / "bf16")
            assert narrow < 5e-3, f"losses in bf16 after resharding to {mesh} differ by {narrow}"

        assert worst < TOLERANCE, f"losses after resharding differ by {worst}"

        falls = metrics(whole)[0]["loss"] - metrics(whole)[-1]["loss"]
        assert falls > 1, f"the loss falls by {falls} only: the comparison sees too little"
    print(f"resume: bit-equal after 3 save points of {STEPS} steps, and on {len(OTHERS)} more meshes and with {len(SETTINGS)} other settings after one; resharded to {len(OTHERS)} other meshes and back the loss differs by at most {worst:.1e}")


if __name__ == "__main__":
    main()
