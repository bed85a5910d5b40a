#!/usr/bin/env python3
"""The same seed gives the same bits, 10 times of 10 (a tiny model); a run that is stopped and resumed gives the bits of one that was not."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import tiny_run
from switches import skip_case

PIPER = os.environ.get("PIPER", "build/release/piper")
# Measured, not computed: times, and peak memory (which messages are in flight at once depends on timing).
MEASURED = ("step_seconds", "tokens_per_second", "mfu", "peak_bytes")


def train(folder, *more, cluster="rtx4090x8"):
    command = [PIPER, "train", "--model", "piper-10m", "--cluster", str(cluster), "--precision", "fp32", "--pp", "2", "--ep", "2", "--dp", "2",
               "--sequence", "64", "--global-batch", "8", "--steps", "8", "--checkpoint-every", "4", "--run", str(folder), "--json",
               "--data", str(folder.parent / "text.txt"), *more]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"resume: {' '.join(command)} failed:\n{run.stderr}")


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in MEASURED} for line in lines]


def hashes(folder):
    manifest = json.loads((folder / "checkpoints/step-00000008/manifest.json").read_text())
    return json.dumps(manifest["files"], sort_keys=True)


def same_ten_times(root):
    """Every metric but time, and every byte of the checkpoints."""
    tiny_run.write_inputs(root)
    seen = []
    for number in range(10):
        run = root / f"seed-{number}"
        tiny_run.train(root, run, (2, 2, 2), "--checkpoint-every", "4", "--stop-after", "8")
        folders = sorted((run / "checkpoints").glob("step-*"))
        assert len(folders) == 2, folders
        content = {f"{f.parent.name}/{f.name}": f.read_bytes() for folder in folders for f in sorted(folder.iterdir())}
        seen.append((tiny_run.metrics(run), content))
    for number, one in enumerate(seen):
        assert one == seen[0], f"run {number} of 10 with the same seed differs from the first"


def cluster_that_prefers(library, measured, path):
    """A cluster file in which `library` was the faster one for every class of products."""
    description = json.loads(pathlib.Path("configs/clusters/rtx4090x8.json").read_text())
    curve = json.loads(json.dumps(measured))
    for name in ("seconds", "seconds_low", "seconds_high", "seconds_worst"):
        curve["points"][name] = [1.0 if used == library else 2.0 for used in curve["points"]["library"]]
    path.write_text(json.dumps(description | {"curves": [curve]}))
    return path


def same_libraries(root):
    """Who does the matrix products is the cluster file's choice, and stays a run's own when it is resumed with another file."""
    profile = root / "here.json"
    subprocess.run([PIPER, "profile", "--ranks", "1", "--budget-seconds", "2", "--out", str(profile)], capture_output=True, check=True)
    found = [c for c in json.loads(profile.read_text())["curves"] if c["name"] == "product_libraries"]
    if not found or "PIPER_PRODUCTS" in os.environ:
        return skip_case("libraries of products", "one library alone is in use here")
    libtorch, onednn = (cluster_that_prefers(i, found[0], root / f"prefers-{i}.json") for i in (0, 1))
    whole, stopped, other = root / "by-onednn", root / "by-onednn-stopped", root / "by-libtorch"
    train(whole, cluster=onednn)
    train(other, cluster=libtorch)
    train(stopped, "--stop-after", "4", cluster=onednn)
    train(stopped, "--resume", cluster=libtorch)
    for run, word in ((whole, "oooooooo"), (stopped, "oooooooo"), (other, "tttttttt")):
        manifest = json.loads((run / "checkpoints/step-00000008/manifest.json").read_text())
        assert manifest["state"]["extra"]["product_libraries"] == " ".join([word] * 3), manifest["state"]
    assert hashes(whole) != hashes(other), "two libraries gave the same bits: the comparison sees nothing"
    assert hashes(stopped) == hashes(whole), "a resumed run changed its libraries of products"


def main():
    with tempfile.TemporaryDirectory() as root:
        same_ten_times(pathlib.Path(root))
        same_libraries(pathlib.Path(root))
        whole, again, stopped = (pathlib.Path(root) / name for name in ("whole", "again", "stopped"))
        train(whole)
        train(again)
        train(stopped, "--stop-after", "4")
        train(stopped, "--resume")
        other = pathlib.Path(root) / "other"
        train(other, "--seed", "1")
        for name, folder in (("the same seed again", again), ("stopped and resumed", stopped)):
            for line, expected in zip(metrics(folder), metrics(whole), strict=True):
                assert line == expected, f"{name}: metrics differ: {line} {expected}"
            assert hashes(folder) == hashes(whole), f"{name}: checkpoints differ"
        assert hashes(other) != hashes(whole), "another seed gave the same bits: the comparison sees nothing"
    print("resume: the same bits 10 times of 10, and after stop and resume (8 steps, pp 2 ep 2 dp 2)")


if __name__ == "__main__":
    main()
