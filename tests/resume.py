#!/usr/bin/env python3
"""The same seed twice gives the same bits; a run that is stopped and resumed gives the bits of one that was not."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

PIPER = os.environ.get("PIPER", "build/release/piper")
# Measured, not computed: times, and peak memory (which messages are in flight at once depends on timing).
MEASURED = ("step_seconds", "tokens_per_second", "mfu", "peak_bytes")


def train(folder, *more):
    command = [PIPER, "train", "--model", "piper-10m", "--cluster", "rtx4090x8", "--precision", "fp32", "--pp", "2", "--ep", "2", "--dp", "2",
               "--sequence", "64", "--global-batch", "8", "--steps", "8", "--checkpoint-every", "4", "--run", str(folder), "--json", *more]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"resume: {' '.join(command)} failed:\n{run.stderr}")


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in MEASURED} for line in lines]


def hashes(folder):
    manifest = json.loads((folder / "checkpoints/step-00000008/manifest.json").read_text())
    return json.dumps(manifest["files"], sort_keys=True)


def main():
    with tempfile.TemporaryDirectory() as root:
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
    print("resume: the same bits twice, and after stop and resume (8 steps, pp 2 ep 2 dp 2)")


if __name__ == "__main__":
    main()
