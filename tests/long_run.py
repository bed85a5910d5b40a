#!/usr/bin/env python3
"""A long run holds what it held: memory, descriptors and threads behind the last step are those behind step 1,000.

10,000 steps with PIPER_FULL_COUNTS=1, otherwise 4,000, of a model of one layer. What of a run grows with its steps is written to its folder;
in memory they leave 16 bytes each (train/run_recorder.h), of which the median step is found."""
import json
import os
import pathlib
import subprocess
import tempfile
import time

from switches import FULL_COUNTS
from tiny_run import MODEL, PIPER, children_of, train_command, write_inputs

STEPS = 10_000 if FULL_COUNTS else 4_000
FIRST = 1_000  # allocators and the steps that are kept (64) have their size by then
ALLOWED = 0.05  # more memory than behind step 1,000
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 8}


def with_piper_train(pid):
    """The process that trains: `piper` becomes it, or starts it."""
    return next(p for p in (pid, *children_of(pid)) if (pathlib.Path(f"/proc/{p}/exe").resolve().name) == "piper-train")


def held(pid):
    """The least of several readings: a save that is under way has a file open."""
    readings = []
    for _ in range(10):
        readings.append(held_now(pid))
        time.sleep(0.02)
    return {what: min(reading[what] for reading in readings) for what in readings[0]}


def held_now(pid):
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    return {"kB": int(status["VmRSS"].split()[0]), "threads": int(status["Threads"]), "descriptors": len(os.listdir(f"/proc/{pid}/fd"))}


def wait_for(process, records, steps):
    while not records.exists() or records.read_bytes().count(b"\n") < steps:
        assert process.poll() is None, f"ended before step {steps}: {process.communicate()}"
        time.sleep(0.05)


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        (root / "model.json").write_text(json.dumps(MODEL | SMALL))
        command = train_command(root, root / "run", (1, 2, 2), "--deviation-bound", "0", "--checkpoint-every", "500")
        for flag, value in (("--steps", 2 * STEPS), ("--sequence", 4), ("--global-batch", 2)):
            command[command.index(flag) + 1] = str(value)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        records = root / "run/metrics.jsonl"
        try:
            wait_for(process, records, FIRST)
            pid = with_piper_train(process.pid)
            before = held(pid)
            wait_for(process, records, STEPS)
            after = held(pid)
        finally:
            process.kill()
            process.wait()
    grown = after["kB"] / before["kB"] - 1
    print(f"long_run: behind step {FIRST:,} {before}, behind step {STEPS:,} {after}: {grown:+.2%}, {(after['kB'] - before['kB']) / (STEPS - FIRST) * 1000:.0f} bytes a step")
    assert grown < ALLOWED, (before, after)
    assert after["threads"] == before["threads"] and after["descriptors"] == before["descriptors"], (before, after)


if __name__ == "__main__":
    main()
