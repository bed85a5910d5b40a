#!/usr/bin/env python3
"""Too little of what a process needs (address space, stack, threads, descriptors, inodes, a control group's memory, room for a name): one line
names the limit, exit code 1 or 2; or the command does what it was asked, because it takes what it needs by itself. And a locale that does not matter."""
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

from switches import FULL_COUNTS, skip_case
from tiny_run import MODEL, PIPER, train_command, write_inputs

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
    # With 10 and 12 the processes meet in part, and wait a minute for each other.
    for count in (6, 8, 10, 12) if FULL_COUNTS else (6, 8):
        code, line = run([PIPER, "launch", "-n", "2", "--grace-seconds", "1", *command[1:]], resource.RLIMIT_NOFILE, count)
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


def inodes(root):
    small = root / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=22", "none", str(small)], capture_output=True).returncode:
        skip_case("inodes", "mounting a small file system needs root")
        return
    try:
        code, line = run(train_command(root, small / "run", (1, 2, 2), "--checkpoint-every", "2", "--keep-checkpoints", "9"), allowed=(1,))
        assert "no inode is left" in line, line
        done = subprocess.run([PIPER, "checkpoint", "verify", str(small / "run")], capture_output=True, text=True)
        assert done.returncode == 0 and "step-" in done.stdout, done
    finally:
        subprocess.run(["umount", str(small)], check=True)


def memory_group():
    """A new control group of this process's memory and how its limit is named, under version 2 or 1; None where none can be made."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = pathlib.Path("/sys/fs/cgroup", controllers)
        name, limit = f"piper-test-{os.getpid()}", "memory.limit_in_bytes" if controllers else "memory.max"
        for parent in (top / path.lstrip("/"), top):
            try:
                (parent / name).mkdir()
            except OSError:
                continue
            if (parent / name / limit).exists():
                return parent / name, limit
            (parent / name).rmdir()
    return None


def control_group(root):
    """A batch system's limit of memory: refused before the first step, with what the group leaves."""
    made = memory_group()
    if made is None:
        skip_case("control group", "none can be made here")
        return
    group, limit = made
    try:
        (group / limit).write_text(str(512 * KIB * KIB))
        command = train_command(root, root / "group", (1, 2, 2), "--stop-after", "2")
        into_group = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        assert run([*into_group, *command], allowed=(0,))[0] == 0
        (root / "large.json").write_text(json.dumps(MODEL | {"hidden_size": 1024, "intermediate_size": 4096}))
        command[command.index("--model") + 1] = str(root / "large.json")
        code, line = run([*into_group, *command, "--fresh"], allowed=(1, 2))
        assert "available" in line and "MiB" in line, line
    finally:
        group.rmdir()


def names(root):
    """Of folders: as long as a file system takes, longer, and a path beyond what the kernel takes."""
    for length in (255, 256):
        code, line = run(train_command(root, root / ("r" * length), (1, 1, 1), "--stop-after", "2"), allowed=(0,) if length == 255 else (1, 2))
        assert length == 255 or "File name too long" in line, (length, line)
    code, line = run(train_command(root, root / "/".join(["d" * 200] * 24), (1, 1, 1), "--stop-after", "2"), allowed=(1, 2))
    assert "File name too long" in line, line


def locales():
    """Numbers and names are written alike, whatever the environment calls its language."""
    command = [PIPER, "estimate", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--ep", "8", "--json"]
    said = {name: subprocess.run(command, capture_output=True, env={**os.environ, "LC_ALL": name, "LANG": name}, check=True).stdout
            for name in ("C", "C.UTF-8", "de_DE.UTF-8", "tr_TR.UTF-8", "nonsense", "")}
    assert len(set(said.values())) == 1, said


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        address_space(root)
        stacks(root)
        descriptors(root)
        threads(root)
        locales()
        if CAN_TRAIN:
            inodes(root)
            control_group(root)
            names(root)
    if not CAN_TRAIN:
        skip_case("training", "a build without libtorch")
    print("too little address space, stack, descriptors, threads, inodes, memory of a group, room for a name: one line that names the limit, or the command's own work")


if __name__ == "__main__":
    sys.exit(main())
