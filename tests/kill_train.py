#!/usr/bin/env python3
"""kill -9 of a training run that saves after every step, again and again: each time the newest checkpoint is whole and the run
goes on from it; every end has the bits of a run that nobody killed. Half of the kills wait for a save to be under way.
PIPER_FULL_COUNTS=1 kills 100 times."""
import json
import pathlib
import random
import subprocess
import tempfile
import time

from switches import FULL_COUNTS
from tiny_run import PIPER, STEPS, files, metrics, train, train_command, write_inputs

MESHES = [(2, 2, 2)]  # one, so that the bits are those of the calm run


def newest(run):
    done = subprocess.run([PIPER, "checkpoint", "verify", str(run), "--json"], capture_output=True, text=True)
    if done.returncode == 2:  # nothing saved yet
        return 0, []
    assert done.returncode == 0, f"a kill left a bad checkpoint: {done.stdout}{done.stderr}"
    result = json.loads(done.stdout)
    return max((c["step"] for c in result["checkpoints"] if c["newest_complete"]), default=0), result["unfinished"]


def is_saving(run):
    return any((run / "checkpoints").glob("*.tmp-*"))


def kill_it(process, run, seconds, inside_save):
    """Kills after so many seconds, or in the first save after them. False: the run had ended before."""
    until = time.monotonic() + seconds
    while process.poll() is None and (time.monotonic() < until or (inside_save and not is_saving(run))):
        time.sleep(0.001)
    ended = process.poll() is not None
    process.kill()
    return not ended


def check_end(run, calm):
    assert metrics(run) == metrics(calm), "the metrics are not those of the calm run"
    assert files(run, STEPS) == files(calm, STEPS), "the end is not that of the calm run"


def main():
    rounds = 100 if FULL_COUNTS else 12
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
        killed = interrupted = ends = step = 0
        while killed < rounds:
            process = subprocess.Popen(train_command(root, run, MESHES[0], "--checkpoint-every", "1", *(["--resume"] if step else [])),
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            was_killed = kill_it(process, run, random.uniform(0.2, 0.8) * calm_seconds, killed % 2 == 0)
            message = process.communicate()[1]
            if was_killed and process.returncode == -9:
                killed += 1
                now, unfinished = newest(run)
                assert now >= step, f"a kill lost step {step}: the newest is {now}"
                step, interrupted = now, interrupted + bool(unfinished)
            else:
                assert process.returncode == 0, message
                step = STEPS
            if step == STEPS:  # the end, or killed behind the last save
                if not was_killed:
                    check_end(run, calm)
                    ends += 1
                subprocess.run(["rm", "-rf", str(run)], check=True)
                step = 0
        train(root, run, MESHES[0], "--checkpoint-every", "1", *(["--resume"] if step else []))
        check_end(run, calm)
        assert interrupted >= rounds // 8, f"only {interrupted} of {rounds} kills were inside a save: this tests little"
    print(f"kill: {killed} kills, {interrupted} of them inside a save, 0 bad checkpoints; {ends + 1} ends are those of the calm run")


if __name__ == "__main__":
    main()
