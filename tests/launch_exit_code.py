#!/usr/bin/env python3
"""The exit code of `piper launch` is that of the process that knows the cause, whichever ends first. The launcher is copied beside
a program that takes the place of piper-train and ends as each process is told to."""
import os
import pathlib
import shutil
import subprocess
import tempfile

PIPER = os.environ.get("PIPER", "build/release/piper")
# What each process ends with, in the order of their ends; -9: by that signal. Then what the launcher says of the run.
ENDS = [
    ((0, 0), 0),
    ((1, 2), 2),  # one hears of the other's wrong input, and is the first to end
    ((2, 1), 2),
    ((1, 1, 1, 2), 2),
    ((1, 1), 1),
    ((1, -9), 137),
    ((-9, 1), 137),
    ((2, -9), 2),
    ((3, 3), 3),
    ((3, 1), 1),
    ((3, 2), 2),
    ((0, 1), 1),
]
TRAIN = """#!/usr/bin/env python3
import os, signal, sys, time
process, codes = int(os.environ["PIPER_PROCESS"]), [int(code) for code in sys.argv[-1].split(",")]
time.sleep(0.15 * process)
if codes[process] < 0:
    os.kill(os.getpid(), -codes[process])
os._exit(codes[process])
"""


def main():
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copy(PIPER, folder / "piper")
        (folder / "piper-train").write_text(TRAIN)
        (folder / "piper-train").chmod(0o755)
        for codes, expected in ENDS:
            command = [folder / "piper", "launch", "-n", str(len(codes)), "train", "--codes", ",".join(map(str, codes))]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            if done.returncode != expected:
                wrong.append(f"{codes}: {done.returncode}, not {expected}: {done.stderr}")
    assert not wrong, "\n".join(wrong)
    print(f"launch: {len(ENDS)} ways to end, each with the code of the process that knows the cause")


if __name__ == "__main__":
    main()
