#!/usr/bin/env python3
"""Ranks in processes that an mpirun started exchange what they have to, and a rank that fails ends the run with its reason.
Usage: comm_mpi.py <process_probe>. Runs under every mpirun whose plug-in lies beside the program; without any, it is skipped."""
import os
import pathlib
import shutil
import subprocess
import sys
import time

from switches import skip, skip_case

PROBE = pathlib.Path(sys.argv[1]).resolve()
LAUNCHERS = {
    "openmpi": ["mpirun.openmpi", "--oversubscribe", "-n", "4"],
    "mpich": ["mpiexec.mpich", "-n", "4"],
}
# MPI libraries leak: under AddressSanitizer everything but leaks is checked.
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_btl="self,vader",
                   ASAN_OPTIONS="detect_leaks=0")


def run(launcher, *arguments):
    started = time.monotonic()
    done = subprocess.run([*launcher, str(PROBE), *arguments], capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    return done, time.monotonic() - started


def check(name, launcher):
    for ranks in ("4", "8"):
        done, seconds = run(launcher, "patterns", ranks)
        assert done.returncode == 0 and "right" in done.stdout, (name, ranks, done.stdout, done.stderr)
        print(f"{name}: {done.stdout.strip()} ({seconds:.1f} s)")
    done, seconds = run(launcher, "fail", "4")
    said = done.stdout + done.stderr
    assert done.returncode != 0, (name, said)
    assert "the disk is full" in said, (name, said)
    assert seconds < 20, (name, seconds)
    print(f"{name}: a rank's failure ended the run ({seconds:.1f} s)")
    done, _ = run(launcher, "patterns", "6")
    assert done.returncode != 0 and "started 4 processes, and the strategy needs 6 ranks" in done.stdout + done.stderr, done


def main():
    num_checked = 0
    for name, launcher in LAUNCHERS.items():
        if shutil.which(launcher[0]) is None or not (PROBE.parent / f"piper_mpi_{name}.so").exists():
            skip_case(name, f"{launcher[0]} or its plug-in is not there")
            continue
        check(name, launcher)
        num_checked += 1
    return 0 if num_checked else skip("no mpirun whose plug-in lies beside the program")


if __name__ == "__main__":
    sys.exit(main())
