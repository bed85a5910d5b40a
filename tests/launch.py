#!/usr/bin/env python3
"""Several processes, started by `piper launch`, Open MPI, MPICH and torchrun where they are there: the bits of a run on threads;
and what becomes of a run when it changes its strategy, or a process or the launcher is killed, hangs, or is told to stop.

PIPER_FULL_COUNTS=1 injects each fault 100 times (otherwise 2). Launchers that are not there are skipped, and named."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from switches import FULL_COUNTS, skip_case
from tiny_run import LAUNCHERS_ENVIRONMENT, MODEL, PIPER, STEPS, children_of, files, is_gone, launch, launchers, metrics, train, train_command, write_inputs

MESH = (2, 2, 2)
ROUNDS = 100 if FULL_COUNTS else 2  # how often each fault is injected


def same_bits(root):
    calm = root / "calm"
    train(root, calm, MESH, "--checkpoint-every", "25")
    for name, wrap in launchers():
        run = root / "several"
        done = subprocess.run(wrap(train_command(root, run, MESH, "--checkpoint-every", "25", "--export")), capture_output=True, text=True, env=LAUNCHERS_ENVIRONMENT,
                              timeout=120)
        assert done.returncode == 0, f"{name}: exit code {done.returncode}: {done.stdout}{done.stderr}"
        assert metrics(run) == metrics(calm), f"{name}: other metrics than on threads"
        for step in (25, 50):
            assert files(run, step) == files(calm, step), f"{name}: step {step} has other bits than on threads"
        comparison = json.loads((run / "comparison.json").read_text())
        assert len(comparison["ranks"]) == 4 and all(r["measured_peak_bytes"] > 0 for r in comparison["ranks"]), name
        events = json.loads((run / "measured_trace.json").read_text())["traceEvents"]
        assert len({e["pid"] for e in events if e["ph"] == "X"}) == 4, f"{name}: the trace lacks ranks"
        print(f"{name}: bit-equal to threads, {len(files(run, 50))} shards")
        shutil.rmtree(run)


class Started:
    """A run on 4 processes in the middle of its steps: just behind the `behind`th. `flags` are set in place of the usual ones."""

    def __init__(self, root, *more, wrapped=(), behind=8, flags={}):
        self.run = root / "faulty"
        shutil.rmtree(self.run, ignore_errors=True)
        command = train_command(root, self.run, MESH, "--checkpoint-every", "5", *more)
        for flag, value in {"--steps": "100000", **flags}.items():
            command[command.index(flag) + 1] = value
        self.process = subprocess.Popen(launch(4, command, *wrapped), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.lines = []  # (when, line)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        until = time.monotonic() + 60
        path = self.run / "metrics.jsonl"
        while not (path.exists() and path.read_text().count("\n") >= behind):
            assert self.process.poll() is None and time.monotonic() < until, "the run did not start: " + self.text()
            time.sleep(0.02)
        self.children = {}
        for pid in children_of(self.process.pid):
            variables = pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0")
            self.children[int(next(v.split("=")[1] for v in variables if v.startswith("PIPER_PROCESS=")))] = pid

    def wait_for_checkpoint(self):
        """A save goes on beside the steps, and on a busy machine takes longer than several."""
        until = time.monotonic() + 60
        while not any(folder.suffix == "" for folder in (self.run / "checkpoints").glob("step-*")):
            assert self.process.poll() is None and time.monotonic() < until, "nothing was saved: " + self.text()
            time.sleep(0.02)

    def read(self):
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line))

    def text(self):
        return "".join(line for _, line in self.lines)

    def end(self, timeout):
        code = self.process.wait(timeout)
        self.reader.join()
        return code


def killed(root, number):
    run = Started(root)
    run.wait_for_checkpoint()
    victim = number % 4
    at = time.monotonic()
    os.kill(run.children[victim], signal.SIGKILL)
    code = run.end(20)
    took = time.monotonic() - at
    pid = run.children[victim]
    last = [(when - at, int(found.group(1))) for when, line in run.lines
            if (found := re.search(rf"rank {victim} \(host \S+, pid {pid}\) died: .* in step (\d+), '[^']+'", line))]
    assert last, f"rank {victim} (pid {pid}), its step and its operation are not named: {run.text()}"
    named = [when for when, _ in last]
    steps = [json.loads(line)["step"] for line in (run.run / "metrics.jsonl").read_text().splitlines() if line.endswith("}")]
    # What a rank does is told every 20 ms (kActivitySeconds), which may be a whole step of this model.
    assert all(steps[-1] - 1 <= step <= steps[-1] + 2 for _, step in last), f"after step {steps[-1]}, it is said to have died in {last}"
    checked = subprocess.run([PIPER, "checkpoint", "verify", "--json", str(run.run / "checkpoints")], capture_output=True, text=True)
    assert checked.returncode == 0 and json.loads(checked.stdout)["checkpoints"], f"what is left is no sound checkpoint: {checked}"
    assert re.search(rf"process {victim} \(pid {pid}\) was ended by signal 9", run.text()), run.text()
    assert code == 128 + signal.SIGKILL, f"exit code {code}: {run.text()}"
    assert named[0] < 2 and took < 4, f"named after {named[0]:.1f} s, all gone after {took:.1f} s"
    return named[0]


def launcher_killed(root):
    """Its processes do not outlive it, and leave a folder that the next run may have."""
    run = Started(root)
    run.wait_for_checkpoint()
    at = time.monotonic()
    run.process.kill()
    while not all(is_gone(pid) for pid in run.children.values()):
        assert time.monotonic() < at + 2, f"two seconds behind its launcher a process goes on: {run.children}"
        time.sleep(0.01)
    run.end(20)
    step = max(c["step"] for c in json.loads(subprocess.run([PIPER, "checkpoint", "verify", "--json", str(run.run / "checkpoints")],
                                                            capture_output=True, text=True, check=True).stdout)["checkpoints"])
    command = train_command(root, run.run, MESH, "--resume", "--stop-after", str(step + 1))
    command[command.index("--steps") + 1] = "100000"
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and f"resuming after step {step} " in done.stdout, done


def hung(root, number):
    timeout = 2
    run = Started(root, "--heartbeat-seconds", str(timeout), wrapped=("--grace-seconds", "2"))
    victim = number % 4
    at = time.monotonic()
    os.kill(run.children[victim], signal.SIGSTOP)
    code = run.end(30)
    named = [when - at for when, line in run.lines if f"rank {victim}" in line and str(run.children[victim]) in line]
    assert named, f"rank {victim} is not named: {run.text()}"
    assert named[0] < timeout + 1, f"named after {named[0]:.1f} s"
    assert code != 0
    return named[0]


def slowed(root):
    """Stopped for a tenth of each eighth of a second: five times slower, and no reason for an alarm."""
    run = Started(root, "--heartbeat-seconds", "2")
    until = time.monotonic() + 6
    while time.monotonic() < until:
        os.kill(run.children[2], signal.SIGSTOP)
        time.sleep(0.1)
        os.kill(run.children[2], signal.SIGCONT)
        time.sleep(0.025)
    assert run.process.poll() is None, f"a slow process was taken for a lost one: {run.text()}"
    run.process.send_signal(signal.SIGTERM)
    assert run.end(30) == 3, run.text()


def told_to_stop(root):
    run = Started(root)
    run.process.send_signal(signal.SIGTERM)
    code = run.end(30)
    assert code == 3, f"exit code {code}: {run.text()}"
    steps = [json.loads(line)["step"] for line in (run.run / "metrics.jsonl").read_text().splitlines()]
    assert files(run.run, steps[-1]), "the last step is not saved"
    # Twice, in the middle of a step of about a second: now. (Within 50 ms it is one request: lost_console.py.)
    run = Started(root, behind=2, flags={"--sequence": "512", "--global-batch": "64"})
    at = time.monotonic()
    for _ in range(2):
        for pid in run.children.values():
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.1)
    assert run.end(10) == 128 + signal.SIGTERM and time.monotonic() - at < 5, run.text()


def changed(root):
    """--replan auto: two stages and one micro-batch, each waiting for the other half of the time, make way for something faster. The same processes
    go on: nothing starts them again. Who is told to stop when a change is proposed stops them all, wherever they are in it."""
    if len(os.sched_getaffinity(0)) < 2:
        skip_case("a changed strategy", "on one core the stages do not wait for each other in vain")
        return 0
    described = json.loads((pathlib.Path(__file__).resolve().parent.parent / "configs/clusters/rtx4090x8.json").read_text())
    described.update(kind="cpu", memory_bytes_per_second=1e10, compute={"fp32": {"peak_flops_per_second": 1e11, "gemm_efficiency": 0.5}})
    (root / "cores.json").write_text(json.dumps({k: v for k, v in described.items() if k not in ("sources", "element_wise_bytes_per_second")}))
    (root / "longer.json").write_text(json.dumps({**MODEL, "hidden_size": 128, "intermediate_size": 256}))
    losses = {}
    for policy in ("off", "auto"):
        command = train_command(root, root / policy, (2, 1, 1), "--replan", policy)
        for flag, value in (("--model", root / "longer.json"), ("--cluster", root / "cores.json"), ("--sequence", 64), ("--steps", 120)):
            command[command.index(flag) + 1] = str(value)
        done = subprocess.run(launch(2, [*command, "--micro-batch", "8", "--num-micro-batches", "1"]), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        losses[policy] = [line["loss"] for line in metrics(root / policy)]
    mesh = json.loads((root / "auto" / "strategy.json").read_text())["mesh"]
    assert mesh != json.loads((root / "off" / "strategy.json").read_text())["mesh"], f"nothing was changed: {done.stdout}{done.stderr}"
    assert len(losses["auto"]) == len(losses["off"]) == 120
    furthest = max(abs(a - b) / b for a, b in zip(losses["auto"], losses["off"]))
    assert furthest < 1e-5, furthest
    command[command.index("--steps") + 1] = "100000"
    command[command.index("--run") + 1] = str(root / "told")
    process = subprocess.Popen(launch(2, [*command, "--micro-batch", "8", "--num-micro-batches", "1"]), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not (root / "told" / "proposed_strategy.json").exists():
        assert process.poll() is None and time.monotonic() < until, "nothing was proposed"
        time.sleep(0.001)
    for pid in children_of(process.pid):
        if "PIPER_PROCESS=1" in pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0"):
            os.kill(pid, signal.SIGTERM)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 3, f"exit code {process.returncode}: {said}"
    assert files(root / "told", metrics(root / "told")[-1]["step"]), "the last step is not saved"
    return furthest


def refused(root):
    command = train_command(root, root / "refused", MESH)
    done = subprocess.run(launch(3, command), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "3 processes" in done.stderr and "4 ranks" in done.stderr, done.stderr
    done = subprocess.run([PIPER, "launch", "-n", "2", "plan"], capture_output=True, text=True)
    assert done.returncode == 2 and "allowed: train" in done.stderr, done.stderr
    # Another strategy on one of the processes.
    environment = {**os.environ, "PIPER_NUM_PROCESSES": "2", "PIPER_MASTER_ADDRESS": "127.0.0.1", "PIPER_MASTER_PORT": "29655", "PIPER_SECRET": "s" * 32}
    runs = []
    for process, steps in ((0, "50"), (1, "60")):
        command = train_command(root, root / "refused", MESH)
        command[command.index("--steps") + 1] = steps
        runs.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                     env={**environment, "PIPER_PROCESS": str(process)}))
    errors = [run.communicate(timeout=60)[1] for run in runs]
    assert all(run.returncode == 2 for run in runs) and "--steps 60" in errors[0] and "--steps 50" in errors[0], errors


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        same_bits(root)
        refused(root)
        print(f"--replan auto: another mesh, losses within {changed(root):.1e} of a run that stays")
        print(f"killed: {ROUNDS} of {ROUNDS} named, after {max(killed(root, i) for i in range(ROUNDS)):.2f} s at most")
        launcher_killed(root)
        print("the launcher killed: its processes are gone with it")
        print(f"hung: {ROUNDS} of {ROUNDS} named, after {max(hung(root, i) for i in range(ROUNDS)):.2f} s at most, the limit being 2 s")
        slowed(root)
        print("five times slower: no alarm")
        told_to_stop(root)
        print("told to stop: saved, exit code 3; told twice: gone")


if __name__ == "__main__":
    main()
