#!/usr/bin/env python3
"""Too little of what a process needs (address space, stack, threads, descriptors, inodes): one line names the limit, exit code 1; or the
command does what it was asked, because it takes what it needs by itself."""
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

from switches import skip_case
from tiny_run import PIPER, train_command, write_inputs

KIB = 1 << 10
CAN_TRAIN = pathlib.Path(PIPER).with_name("piper-train").exists()


def run(command, limit=None, value=0, allowed=(0, 1), **more):
    def lower():
        if limit is not None:
            resource.setrlimit(limit, (value, value))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=lower, **more)
    lines = [line for line in done.stderr.splitlines() if line.startswith("piper: ") and "warning: " not in line]
    what = (command[1:3], limit, value, done.returncode, done.stderr)
    assert done.returncode in allowed, what
    assert "terminate called" not in done.stderr and "internal error" not in done.stderr, what
    if done.returncode == 1 and command[1] != "launch":  # each of its processes has a line
        assert len(lines) == 1, what
    return done.returncode, " ".join(lines)


def address_space(root):
    commands = [[PIPER, "model", "mixtral-8x7b"], [PIPER, "plan", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--devices", "8", "--global-batch", "16"]]
    if CAN_TRAIN:
        commands += [[PIPER, "train", "--help"], train_command(root, root / "run", (1, 2, 2), "--stop-after", "2", "--fresh"), [PIPER, "data", "--help"]]
    for command in commands:
        for mib in (20, 50, 100, 200, 300, 400, 420, 450, 500, 600, 700, 800, 1000):
            code, line = run(command, resource.RLIMIT_AS, mib * KIB * KIB)
            assert code == 0 or "ulimit -v" in line or "address" in line or "no thread" in line or "cannot be started" in line, (command, mib, line)


def stacks(root):
    plan = [PIPER, "plan", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--devices", "8", "--global-batch", "16", "--threads", "2"]
    for kib in (64, 128, 256):
        run(plan, resource.RLIMIT_STACK, kib * KIB, allowed=(0,))
        if CAN_TRAIN:
            run(train_command(root, root / f"stack-{kib}", (1, 2, 2), "--stop-after", "2"), resource.RLIMIT_STACK, kib * KIB, allowed=(0,))


def descriptors(root):
    if not CAN_TRAIN:
        return
    command = train_command(root, root / "few", (2, 1, 1), "--stop-after", "2", "--fresh")
    for count in (6, 8, 10, 12):
        code, line = run([PIPER, "launch", "-n", "2", *command[1:]], resource.RLIMIT_NOFILE, count, allowed=(0, 1, 2))
        assert code == 0 or f"this process may have {count}" in line, (count, code, line)


def threads(root):
    """Another user's limit, which root does not have."""
    if os.geteuid() != 0:
        skip_case("threads", "needs root, to become a user without processes")
        return
    setpriv = shutil.which("setpriv")
    if setpriv is None or not CAN_TRAIN:
        skip_case("threads", "setpriv or piper-train is not there")
        return
    os.chmod(root, 0o777)
    command = train_command(root, root / "threads", (1, 2, 4), "--stop-after", "2")
    done = subprocess.run([setpriv, "--reuid", "4211", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", *command], capture_output=True, text=True, timeout=120,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (4, 4)), env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode == 0 or "ermission" in done.stderr:
        skip_case("threads", "the limit of processes is not kept here")
        return
    assert done.returncode == 1 and "(ulimit -u)" in done.stderr, (done.returncode, done.stderr)


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        address_space(root)
        stacks(root)
        descriptors(root)
        threads(root)
    if not CAN_TRAIN:
        skip_case("training", "a build without libtorch")
    print("too little address space, stack, descriptors, threads: one line that names the limit, exit code 1, or the command's own work")


if __name__ == "__main__":
    sys.exit(main())
