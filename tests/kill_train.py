#!/usr/bin/env python3
"""kill -9 of a training run while it saves: the newest checkpoint is whole, the run goes on from it, and its end has the bits of a run that
nobody killed.

  by phase    file_faults.cpp, preloaded, ends a process at the n-th call of one phase of a save (a file begun, written, flushed; the folder
              renamed; an old checkpoint removed), n drawn. Each phase is taken in turn, over six meshes, and over threads and every launcher
  by time     the threads' process is killed at a random moment; half of the kills wait for a save to be under way
  errors      in place of the kill the call fails: the run ends with 1 and the cause, and an older checkpoint is as it was

PIPER_FULL_COUNTS=1: 200 kills by phase and 100 by time. Environment: PIPER, the program; FILE_FAULTS, the library to preload."""
import collections
import errno
import json
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import time

import tiny_run
from switches import FULL_COUNTS, skip_case
from tiny_run import LAUNCHERS_ENVIRONMENT, PIPER, files, launchers, metrics, train, train_command, write_inputs

FILE_FAULTS = os.environ.get("FILE_FAULTS")
MESHES = {  # pp ep dp tp cp: four ranks each
    "pp 2 x ep 2": (2, 2, 2),
    "tp 2 x etp 2 x ep 2": (1, 2, 2, 2, 1, "--etp", "2"),
    "cp 2 x ep 2": (1, 2, 2, 1, 2),
    "copies of experts": (1, 2, 4, 1, 1, "--redundant-experts", "2", "--rebalance", "replicate"),
    "coded updates, ZeRO 1": (1, 2, 4, 1, 1, "--zero", "1", "--expert-compression", "50"),
    "optimizer on the host, ZeRO 1": (1, 2, 4, 1, 1, "--zero", "1", "--offload", "optimizer"),
}
STEPS = 6
SAVING = ("--checkpoint-every", "2", "--keep-checkpoints", "1")


def command_for(root, run, mesh, *more):
    command = train_command(root, run, [n for n in MESHES[mesh] if isinstance(n, int)], *SAVING, *[f for f in MESHES[mesh] if isinstance(f, str)], *more)
    command[command.index("--steps") + 1] = str(STEPS)
    return command


def run_it(command, **variables):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**LAUNCHERS_ENVIRONMENT, **variables})


def newest(run):
    done = subprocess.run([PIPER, "checkpoint", "verify", str(run), "--json"], capture_output=True, text=True)
    if done.returncode == 2:  # nothing saved yet
        return 0, []
    assert done.returncode == 0, f"a kill left a bad checkpoint: {done.stdout}{done.stderr}"
    result = json.loads(done.stdout)
    return max((c["step"] for c in result["checkpoints"] if c["newest_complete"]), default=0), result["unfinished"]


class Calm:
    """The run of a mesh that nobody hurts, and the phases of its saves: {phase: calls}."""

    def __init__(self, root, mesh, wrap=lambda c: c):
        self.run = root / f"calm {mesh}"
        shutil.rmtree(self.run, ignore_errors=True)
        log = root / "phases"
        log.unlink(missing_ok=True)
        done = run_it(wrap(command_for(root, self.run, mesh)), LD_PRELOAD=FILE_FAULTS, FILE_FAULTS_UNDER=f"{self.run}/", FILE_FAULTS_LOG=str(log))
        assert done.returncode == 0, done.stdout + done.stderr
        self.phases = collections.Counter(line for line in log.read_text().splitlines() if " checkpoints" in line)

    def check_end(self, run, what):
        assert metrics(run) == metrics(self.run), f"{what}: the metrics are not those of the calm run"
        assert files(run, STEPS) == files(self.run, STEPS), f"{what}: the end is not that of the calm run"


def hurt(root, calm, mesh, wrap, phase, number):
    """A run that is killed there, and goes on. True: it was inside a save; None: the phase was not reached so often by one process."""
    run, once = root / "hurt", root / "once"
    shutil.rmtree(run, ignore_errors=True)
    once.unlink(missing_ok=True)
    what = f"{mesh}, call {number} of '{phase}'"
    done = run_it(wrap(command_for(root, run, mesh)), LD_PRELOAD=FILE_FAULTS, FILE_FAULTS_UNDER=f"{run}/", FILE_FAULTS_AT=f"{number} {phase}",
                  FILE_FAULTS_ONCE=str(once))
    assert (done.returncode != 0) == once.exists(), f"{what}: exit code {done.returncode}: {done.stdout}{done.stderr}"
    if not once.exists():
        calm.check_end(run, what)
        return None
    step, unfinished = newest(run)
    again = run_it(wrap(command_for(root, run, mesh, *(["--resume"] if step else []))))
    assert again.returncode == 0, f"{what}: resumed after step {step}: {again.stdout}{again.stderr}"
    calm.check_end(run, what)
    return bool(unfinished)


def kills_by_phase(root, calms, rounds):
    ways = {"threads": lambda c: c, **dict(launchers())}
    # Processes tell each other of their shards in files that threads have not.
    of_processes = Calm(root, next(iter(calms)), ways["launch, 2 processes"]).phases
    phases = sorted(of_processes)
    assert all(set(calm.phases) < set(phases) for calm in calms.values()), (phases, [sorted(calm.phases) for calm in calms.values()])
    rounds, inside, met = max(rounds, len(phases)), 0, collections.Counter()
    for number in range(rounds):
        mesh, way, phase = list(calms)[number % len(calms)], list(ways)[number % len(ways)], phases[number % len(phases)]
        if way == "threads" and phase not in calms[mesh].phases:
            way = "launch, 4 processes"
        result = hurt(root, calms[mesh], mesh, ways[way], phase, random.randint(1, of_processes[phase]))
        if result is None:  # the calls of a launched run are spread over its processes
            result = hurt(root, calms[mesh], mesh, ways[way], phase, 1)
        assert result is not None, f"{mesh}, {way}: '{phase}' was never reached"
        inside += result
        met.update((mesh, way))
    assert all(met[name] for name in (*calms, *ways)), f"this tests little: {met}"
    print(f"kill by phase: {rounds} kills over {len(phases)} phases, {len(calms)} meshes and {len(ways)} ways to start, {inside} left an unfinished save, 0 bad; "
          f"{rounds} ends are those of the calm run")


def errors(root, calm, mesh):
    """A call that fails, once or from then on, in the second save."""
    half = {phase: calls // 2 + 1 for phase, calls in calm.phases.items()}
    cases = [(phase, errno.EIO, {}) for phase in half if phase.split()[0] in ("open", "write", "fsync", "rename", "mkdir") and "tmp" in phase]
    cases += [(phase, errno.EROFS, {"FILE_FAULTS_STAY": "1"}) for phase in half if phase.split()[0] == "open" and "tmp" in phase][:1]
    for phase, error, more in cases:
        run = root / "failing"
        shutil.rmtree(run, ignore_errors=True)
        done = run_it(command_for(root, run, mesh), LD_PRELOAD=FILE_FAULTS, FILE_FAULTS_UNDER=f"{run}/", FILE_FAULTS_AT=f"{half[phase]} {phase}",
                      FILE_FAULTS_ERRNO=str(error), **more)
        what = f"'{phase}' fails with {os.strerror(error)}: exit code {done.returncode}: {done.stderr}"
        assert done.returncode == 1 and os.strerror(error).lower() in done.stderr.lower(), what
        step, _ = newest(run)
        assert step > 0, f"the older checkpoint is gone: {what}"
        again = run_it(command_for(root, run, mesh, "--resume"))
        assert again.returncode == 0, f"{what}; resumed: {again.stdout}{again.stderr}"
        calm.check_end(run, what)
    print(f"errors: {len(cases)} calls that fail end the run with 1 and their cause; each run goes on to the calm end")


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
    assert files(run, tiny_run.STEPS) == files(calm, tiny_run.STEPS), "the end is not that of the calm run"


def kills_by_time(root, rounds):
    mesh = (2, 2, 2)  # one, so that the bits are those of the calm run
    calm, run = root / "calm", root / "run"
    start = time.monotonic()
    train(root, calm, mesh, "--checkpoint-every", "1")
    calm_seconds = time.monotonic() - start
    killed = interrupted = ends = step = 0
    while killed < rounds:
        process = subprocess.Popen(train_command(root, run, mesh, "--checkpoint-every", "1", *(["--resume"] if step else [])),
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
            step = tiny_run.STEPS
        if step == tiny_run.STEPS:  # the end, or killed behind the last save
            if not was_killed:
                check_end(run, calm)
                ends += 1
            shutil.rmtree(run)
            step = 0
    train(root, run, mesh, "--checkpoint-every", "1", *(["--resume"] if step else []))
    check_end(run, calm)
    assert interrupted >= rounds // 8, f"only {interrupted} of {rounds} kills were inside a save: this tests little"
    print(f"kill by time: {killed} kills, {interrupted} of them inside a save, 0 bad checkpoints; {ends + 1} ends are those of the calm run")


def main():
    seed = time.time_ns() % 2**32
    random.seed(seed)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name).resolve()
        write_inputs(root)
        if FILE_FAULTS:
            calms = {mesh: Calm(root, mesh) for mesh in MESHES}
            kills_by_phase(root, calms, 200 if FULL_COUNTS else 0)
            errors(root, calms["pp 2 x ep 2"], "pp 2 x ep 2")
        else:
            skip_case("by phase, errors", "a sanitizer's own library must be loaded first")
        kills_by_time(root, 100 if FULL_COUNTS else 6)


if __name__ == "__main__":
    main()
