#!/usr/bin/env python3
"""The same seed gives the same bits, 10 times of 10 (a tiny model); a run that is stopped and resumed gives the bits of one that was not."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import tiny_run

PIPER = os.environ.get("PIPER", "build/release/piper")
# Measured, not computed: times, and peak memory (which messages are in flight at once depends on timing).
MEASURED = ("step_seconds", "tokens_per_second", "mfu", "peak_bytes")


def train(folder, *more):
    command = [PIPER, "train", "--model", "piper-10m", "--cluster", "rtx4090x8", "--precision", "fp32", "--pp", "2", "--ep", "2", "--dp", "2",
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


def main():
    with tempfile.TemporaryDirectory() as root:
        same_ten_times(pathlib.Path(root))
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
