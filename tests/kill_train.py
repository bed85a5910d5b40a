#!/usr/bin/env python3
"""kill -9 of a training run that saves after every step, again and again: each time the newest checkpoint is whole and the run
goes on from it; the end has the bits of a run that nobody killed. PIPER_KILL_ROUNDS=200 kills longer."""
import json
import os
import pathlib
import random
import subprocess
import tempfile
import time

from tiny_run import PIPER, STEPS, files, metrics, train, train_command, write_inputs

MESHES = [(2, 2, 2)]  # one, so that the bits are those of the calm run


def newest(run):
    done = subprocess.run([PIPER, "checkpoint", "verify", str(run), "--json"], capture_output=True, text=True)
    if done.returncode == 2:  # nothing saved yet
        return 0, []
    assert done.returncode == 0, f"a kill left a bad checkpoint: {done.stdout}{done.stderr}"
    result = json.loads(done.stdout)
    return max((c["step"] for c in result["checkpoints"] if c["newest_complete"]), default=0), result["unfinished"]


def main():
    rounds = int(os.environ.get("PIPER_KILL_ROUNDS", "12"))
    seed = time.time_ns() % 2**32
    random.seed(seed)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        calm, run = root / "calm", root / "run"
        start = time.monotonic()
        train(root, calm, MESHES[0], "--checkpoint-every", "1")
        calm_seconds = time.monotonic() - start
        killed = interrupted = step = 0
        while killed < rounds:
            process = subprocess.Popen(train_command(root, run, MESHES[0], "--checkpoint-every", "1", *(["--resume"] if step else [])),
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            try:
                process.wait(random.uniform(0.2, 0.8) * calm_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                killed += 1
            message = process.communicate()[1]
            if process.returncode == 0:
                subprocess.run(["rm", "-rf", str(run)], check=True)
                step = 0
                continue
            assert process.returncode == -9, message
            now, unfinished = newest(run)
            assert now >= step, f"a kill lost step {step}: the newest is {now}"
            step, interrupted = now, interrupted + bool(unfinished)
            if step == STEPS:  # killed behind the last save
                subprocess.run(["rm", "-rf", str(run)], check=True)
                step = 0
        train(root, run, MESHES[0], "--checkpoint-every", "1", *(["--resume"] if step else []))
        assert metrics(run)[-1] == metrics(calm)[-1] and files(run, STEPS) == files(calm, STEPS), "the end is not that of the calm run"
    print(f"kill: {killed} kills, {interrupted} of them inside a save, 0 bad checkpoints; the end is that of the calm run")


if __name__ == "__main__":
    main()
