#!/usr/bin/env python3
"""`piper bench` is the program piper-bench from beside piper, and commands that need libtorch are piper-train: arguments and exit status are handed on, and where the program is missing one
line says how to build it, once for all processes of `piper launch`."""
import os
import pathlib
import shutil
import subprocess
import tempfile

PIPER = pathlib.Path(os.environ["PIPER"])


def run(*words, piper=PIPER):
    return subprocess.run([piper, *words], capture_output=True, text=True, timeout=60, check=False)


def help_of(program, *words):
    """Without the line that names the program."""
    done = run(*words, "--help", piper=program)
    assert done.returncode == 0 and not done.stderr, done
    return [line for line in done.stdout.splitlines() if not line.startswith("Usage: ")]


for words in ([], ["alltoall"], ["collectives"]):
    there = help_of(PIPER.parent / "piper-bench", *words)
    assert help_of(PIPER, "bench", *words) == there and len(there) > 5, words
one = ["bench", "alltoall", "--ranks", "1", "--min-bytes", "64", "--max-bytes", "64", "--seconds", "1"]
assert run(*one).returncode == 0, run(*one)

for words, said in ((["alltoall", "--sizes", "3"], "unknown flag '--sizes' (see piper bench alltoall --help)"),
                    (["alltoal"], "unknown command 'alltoal'; did you mean 'alltoall'?"),
                    (["help"], "did you mean 'piper bench --help'?"),
                    (["flows", "--bytes", "0"], "--bytes")):
    refused = run("bench", *words)
    assert refused.returncode == 2 and said in refused.stderr and refused.stderr.count("\n") == 1, refused

with tempfile.TemporaryDirectory() as folder:
    alone = pathlib.Path(folder) / "piper"
    shutil.copy(PIPER, alone)  # a link would be followed
    for words in (["bench", "alltoall"], ["bench"], ["launch", "-n", "3", *one]):
        missing = run(*words, piper=alone)
        wanted = f"piper: bench: the program {folder}/piper-bench is not there; build it: cmake --build {folder} --target piper-bench\n"
        assert missing.returncode == 2 and missing.stderr == wanted and not missing.stdout, missing
    if (PIPER.parent / "piper-train").exists():  # a build with libtorch
        for words in (["train", "--steps", "1"], ["eval", "--help"], ["launch", "-n", "3", "train"]):
            missing, called = run(*words, piper=alone), words[-1] if words[0] == "launch" else words[0]
            wanted = f"piper: {called}: the program {folder}/piper-train is not there; build it: cmake --build {folder} --target piper-train\n"
            assert missing.returncode == 2 and missing.stderr == wanted and not missing.stdout, missing
    (alone.parent / "piper-bench").write_text("#!/bin/sh\nprintf '%s|' \"$@\"\nexit 37\n")
    (alone.parent / "piper-bench").chmod(0o755)
    told = run("bench", "moe", "--a b", "", "--json", "-x", "plan", "--help", piper=alone)
    assert told.returncode == 37 and told.stdout == "moe|--a b||--json|-x|plan|--help|", told
    (alone.parent / "piper-bench").chmod(0o644)
    # Without the permission root may not execute a file either.
    closed = run("bench", "moe", piper=alone)
    assert closed.returncode == 1 and "Permission denied" in closed.stderr and closed.stderr.count("\n") == 1, closed
print("bench_program: arguments and exit status are handed on")
