#!/usr/bin/env python3
"""One thread alone makes a process's first call of MKL's vector math, before the ranks compute.

MKL keeps the processor's type in two steps without a lock; a thread that reads between them computes with half of the digits, once
(docs/numerics.md, "Guarantees"). Starts that are repeated show that once in hundreds; a library that is loaded before MKL's
(vector_math_once.cpp) holds every thread that asks for the type and counts them: 4 where four ranks race, 1 where one call is made
first. None at all: a libtorch without this MKL. Environment: PIPER, the program; HOLD, the library.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

import tiny_run
from switches import skip


def threads_that_ask(root):
    calls = root / "calls"
    command = tiny_run.train_command(root, root / "run", (1, 1, 4), "--stop-after", "1")
    environment = {**os.environ, "LD_PRELOAD": os.environ["HOLD"], "VECTOR_MATH_CALLS": str(calls)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}:\n{done.stdout}{done.stderr}"
    return sum(int(line) for line in calls.read_text().splitlines())


def main():
    with tempfile.TemporaryDirectory() as root:
        tiny_run.write_inputs(pathlib.Path(root))
        threads = threads_that_ask(pathlib.Path(root))
    if threads == 0:
        skip("this libtorch has no vector math of MKL")
    print(f"{threads} thread(s) asked MKL for the processor's type")
    return 0 if threads == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
