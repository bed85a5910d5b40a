#!/usr/bin/env python3
"""The same seed gives the same bits: many starts of each mesh, as threads and launched, have one result in metrics and in the bytes of
the checkpoint.

What goes wrong only now and then lies between a process's first calls of a library (docs/numerics.md, "First calls"), so each start is
a process of its own. 60 starts in all; with PIPER_FULL_COUNTS=1 60 of each mesh and 60 launched, as the processor is and with AVX2.
Environment: PIPER, the program.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections import Counter

import tiny_run
from switches import FULL_COUNTS, skip_case

MESHES = {"ep 2 x dp 2": (1, 2, 2), "ep 2 x dp 4": (1, 2, 4), "dp 4": (1, 1, 4), "pp 2 x dp 2": (2, 1, 2), "tp 2 x ep 2": (1, 2, 2, 2)}
SCRIPTS = pathlib.Path(__file__).resolve().parent.parent / "scripts"


def result_of(root, mesh, launched, under):
    run = root / "run"
    shutil.rmtree(run, ignore_errors=True)
    command = tiny_run.train_command(root, run, mesh, "--checkpoint-every", "2", "--stop-after", "2")
    if launched:
        command = [command[0], "launch", "-n", str(launched), *command[1:]]
    done = subprocess.run([*under, *command], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}:\n{done.stdout}{done.stderr}"
    shards = tuple(tuple(sorted(file.items(), key=str)) for file in without_tensors(tiny_run.files(run, 2)))
    return str(tiny_run.metrics(run)), shards


def without_tensors(shards):
    return [{key: value for key, value in shard.items() if key != "tensors"} for shard in shards]


def check(root, name, mesh, starts, launched=0, under=()):
    found = Counter(result_of(root, mesh, launched, under) for _ in range(starts))
    print(f"{name}: {starts} starts, {len(found)} result{'s' if len(found) > 1 else ''}", flush=True)
    assert len(found) == 1, f"{name}: {sorted(found.values(), reverse=True)} starts alike"


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        tiny_run.write_inputs(root)
        isa = [("", ())]
        if FULL_COUNTS:
            if "avx2" in pathlib.Path("/proc/cpuinfo").read_text():
                isa.append((", with AVX2", (str(SCRIPTS / "with_isa"), "avx2")))
            else:
                skip_case("with AVX2", "this processor has none")
        for words, under in isa:
            for name, mesh in MESHES.items():
                check(root, name + words, mesh, 60 if FULL_COUNTS else 11, under=under)
            check(root, "ep 2 x dp 4, launched" + words, (1, 2, 4), 60 if FULL_COUNTS else 5, launched=4, under=under)
    return 0


if __name__ == "__main__":
    sys.exit(main())
