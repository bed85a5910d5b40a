#!/usr/bin/env python3
"""Faults at random on 4 processes, again and again: a rank or all are killed, told to stop, or stopped and then killed; one file is flipped,
cut, deleted or gets zeros for its end; and the run is resumed. A run goes on from the newest checkpoint that is sound (found out here
without Piper), every checkpoint has the bytes of the calm run's, and so has the end. With none left the resume is refused by name.

  chaos.py                            10 rounds
  chaos.py --rounds 200 --state F     as many; goes on in folder F where an earlier call was ended
Rounds take turns: --keep-checkpoints 1 and 2. The seed is printed; --seed repeats the choices (not the instants of the kills)."""
import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from switches import FULL_COUNTS
from tiny_run import PIPER, children_of, files, is_gone, metrics, train_command, write_inputs

MESH = (2, 2, 2)
PROCESSES = 4
LAST = 30  # steps of a life
EVENTS = "events.out.tfevents."


def command_for(root, run, *more):
    command = train_command(root, run, MESH, "--deviation-bound", "0", *more)
    command[command.index("--steps") + 1] = str(LAST)
    return command


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_sound(checkpoint):
    """As sha256sum and a reader of JSON see it."""
    try:
        said = (checkpoint / "manifest.json.sha256").read_text()
        if said != sha256(checkpoint / "manifest.json") + "  manifest.json\n":
            return False
        records = json.loads((checkpoint / "manifest.json").read_text())["files"]
        return all(sha256(checkpoint / r["name"]) == r["sha256"] for r in records)
    except (OSError, ValueError, KeyError):
        return False


def steps_of(run):
    """Step and whether it is sound, of every checkpoint, newest first."""
    found = []
    for path in (run / "checkpoints").glob("step-*"):
        if path.name.removeprefix("step-").isdigit():
            found.append((int(path.name.removeprefix("step-")), is_sound(path)))
    return sorted(found, reverse=True)


def kill(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Life:
    """One run folder: from step 0 to the end, through however many faults."""

    def __init__(self, root, keep, calm, counts):
        self.root, self.keep, self.calm, self.counts = root, keep, calm, counts
        self.run = root / f"keep-{keep}"
        self.mark = root / f"keep-{keep}.json"
        # "": never; "now": since the last start; "earlier": before it, so that the lines behind it are right.
        self.hurt_metrics = json.loads(self.mark.read_text())["hurt_metrics"] if self.mark.exists() else ""

    def note(self):
        self.mark.write_text(json.dumps({"hurt_metrics": self.hurt_metrics}))

    def begin_anew(self):
        self.hurt_metrics = ""
        self.note()

    def start(self, *more):
        if self.hurt_metrics:
            self.hurt_metrics = "earlier"
            self.note()
        self.log = open(self.root / "log", "w+")
        command = command_for(self.root, self.run, "--keep-checkpoints", str(self.keep), "--checkpoint-every", str(self.every), *more)
        return subprocess.Popen([PIPER, "launch", "-n", str(PROCESSES), "--grace-seconds", "2", *command[1:]], stdout=self.log, stderr=self.log)

    def said(self):
        self.log.flush()
        return (self.root / "log").read_text()

    def resume(self):
        """A started process that goes on where it must. `base` is the step it starts from."""
        found = steps_of(self.run)
        sound = [step for step, good in found if good]
        if sound and sound[0] == LAST:
            self.check_end()
            shutil.rmtree(self.run)
            found, sound = [], []
            self.begin_anew()
        self.base = sound[0] if sound else 0
        self.bad_before = {step: self.inode(step) for step, good in found if not good}
        if sound:
            return self.start("--resume")
        self.begin_anew()
        if not found and not list((self.run / "checkpoints").glob("*.damaged*")):
            return self.start()
        assert self.keep == 1, f"with --keep-checkpoints {self.keep} every checkpoint is lost: {found}"
        refused = self.start("--resume")
        assert refused.wait(120) == 2, self.said()
        for name in [f"step-{step:08}" for step, _ in found] + ["holds no complete checkpoint to resume from"]:
            assert name in self.said(), f"{name!r} is not said: {self.said()}"
        self.counts["refused"] += 1
        return self.start("--fresh")

    def check_end(self):
        assert files(self.run, LAST) == self.calm[LAST], "the end is not that of the calm run"
        if self.hurt_metrics != "now":  # a flipped digit is still a number: only what came after it must agree
            first = -1 if self.hurt_metrics else 0
            assert metrics(self.run)[first:] == metrics(self.root / "calm")[first:], "the metrics are not those of the calm run"
        self.counts["ends"] += 1

    def hurt_one(self, rng):
        """Damages one file; says which, or nothing when there was none that may be."""
        found = steps_of(self.run)
        sound = [step for step, good in found if good]
        kind, targets = rng.choice(("checkpoint", "checkpoint", "metrics", "events")), [self.run / "metrics.jsonl"]
        if kind == "checkpoint" and len(sound) >= self.keep:  # N - 1 of N may be lost; the only one with keep 1
            targets = sorted((self.run / f"checkpoints/step-{rng.choice(sound):08}").glob("*"))
        elif kind == "events":
            targets = sorted((self.run / "tensorboard").glob(EVENTS + "*")) or targets
        path = rng.choice(targets)
        how = rng.choice(("flip", "cut", "delete", "zeros"))
        try:
            content = bytearray(path.read_bytes())
        except OSError:
            return ""
        if not content:
            return ""
        at = rng.randrange(len(content))
        if how == "delete":
            path.unlink()
        else:
            if how == "flip":
                content[at] ^= 1 << rng.randrange(8)
            elif how == "cut":
                del content[at:]
            else:
                content[at:] = bytes(len(content) - at)
            path.write_bytes(content)
        if path.name == "metrics.jsonl":
            self.hurt_metrics = "now"
            self.note()
        self.counts["hurt"] += 1
        return f"{how} {path.relative_to(self.run)}"

    def inject(self, fault, process, children, rng):
        victim = rng.randrange(PROCESSES)
        if fault == "term":
            process.send_signal(signal.SIGTERM)
        elif fault == "kill all":
            kill([process.pid, *children])
        elif len(children) == PROCESSES:
            os.kill(children[victim], signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
            if fault == "stop":
                time.sleep(0.2)
                kill([process.pid, *children])
        else:  # before its ranks are there
            kill([process.pid, *children])

    def check_after(self, fault):
        found = steps_of(self.run)
        for step, good in found:
            if good:
                assert files(self.run, step) == self.calm[step], f"step {step} is not that of the calm run"
            else:
                assert step in self.bad_before, f"step {step} is damaged after '{fault}': {self.said()}"
        newest = max((step for step, good in found if good), default=0)
        assert newest >= self.base, f"'{fault}' lost step {self.base}: {found}"
        if self.base and newest > self.base:
            assert f"resuming after step {self.base} from" in self.said(), f"did not go on from {self.base}: {self.said()}"
            self.counts["resumed"] += 1
        self.counts["went on"] += newest > self.base
        self.counts["inside a save"] += bool(list((self.run / "checkpoints").glob("*.tmp-*")))
        return newest

    def round(self, rng):
        """One start, one fault, perhaps one hurt file. Returns what happened, in words."""
        fault, wanted = rng.choice(("kill", "kill all", "term", "stop")), rng.choice((0, 1, 2, 3, 5, 8))
        self.every = rng.choice((1, 1, 2, 3))  # so that what is saved may be older than what is damaged
        early, until = time.monotonic() + rng.uniform(0, 1), time.monotonic() + 240
        process, children = self.resume(), []
        while process.poll() is None:
            children = children_of(process.pid) or children
            if time.monotonic() > early if wanted == 0 else self.reached(self.base + wanted):
                break
            assert time.monotonic() < until, f"no progress within 240 s: {self.said()}"
            time.sleep(0.005)
        if process.poll() is None:
            self.inject(fault, process, children, rng)
        else:
            assert process.returncode == 0, self.said()
        code, until = process.wait(60), time.monotonic() + 60
        while not all(is_gone(pid) for pid in children):
            assert time.monotonic() < until, "a process stays"
            time.sleep(0.005)
        assert code in (0, 3, 1, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGTERM), f"exit code {code}: {self.said()}"
        newest = self.check_after(fault)
        hurt = self.hurt_one(rng) if rng.random() < 0.7 else ""
        return f"keep {self.keep}: from step {self.base} to {newest}, {fault}{', ' + hurt if hurt else ''}"

    def inode(self, step):
        with contextlib.suppress(OSError):
            return os.stat(self.run / f"checkpoints/step-{step:08}").st_ino
        return None

    def reached(self, step):
        """Whether a checkpoint of this step or a later one was made since the start."""
        inodes = {s: self.inode(s) for s in range(min(step, LAST), LAST + 1)}
        return any(inode is not None and inode != self.bad_before.get(s) for s, inode in inodes.items())

    def to_the_end(self):
        self.every = 1
        process = self.resume()
        assert process.wait(600) == 0, self.said()
        self.check_end()


def calm_run(root):
    """What every step's checkpoint must hold."""
    run = root / "calm"
    if not (run / f"checkpoints/step-{LAST:08}").exists():
        shutil.rmtree(run, ignore_errors=True)
        done = subprocess.run(command_for(root, run, "--keep-checkpoints", "100", "--checkpoint-every", "1"), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return {step: files(run, step) for step in range(1, LAST + 1)}


def run_rounds(root, rounds, seed):
    mark = root / "progress.json"
    state = json.loads(mark.read_text()) if mark.exists() else {"seed": seed, "done": 0, "counts": {}}
    counts = {name: 0 for name in ("went on", "resumed", "refused", "hurt", "inside a save", "ends")} | state["counts"]
    print(f"seed {state['seed']}" + (f", going on after round {state['done']}" if state["done"] else ""))
    calm = calm_run(root)
    lives = [Life(root, keep, calm, counts) for keep in (1, 2)]
    for number in range(state["done"], rounds):
        what = lives[number % 2].round(random.Random(f"{state['seed']} {number}"))
        mark.write_text(json.dumps({"seed": state["seed"], "done": number + 1, "counts": counts}))
        print(f"round {number + 1} of {rounds}: {what}", flush=True)
    for life in lives:
        life.to_the_end()
    # A start of which nothing comes tests the start alone: that may not be most of them.
    assert rounds < 20 or counts["went on"] > rounds / 2, f"too few rounds got anywhere: {counts}"
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200 if FULL_COUNTS else 10)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--state", type=pathlib.Path, help="folder that stays, to go on in")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        root = given.state or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        root.mkdir(parents=True, exist_ok=True)
        write_inputs(root)
        counts = run_rounds(root, given.rounds, given.seed)
    print(f"chaos: {given.rounds} rounds, 0 lost: " + ", ".join(f"{count} {name}" for name, count in counts.items()))


if __name__ == "__main__":
    sys.exit(main())
