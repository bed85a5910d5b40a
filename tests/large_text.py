#!/usr/bin/env python3
"""50 GB of text (of zeros, which take no room on disk): a run on it takes no more memory than one on a page, saves and resumes, refuses
another text, and ends by name when the file is cut off."""
import os
import pathlib
import subprocess
import tempfile
import time

from switches import skip
from tiny_run import train, train_command, write_inputs

SIZE = 50_000_000_000
MESH = (1, 1, 1)
MOST_MIB = 16  # more than on a page
START_SECONDS = 10


def measured(root, run, data):
    """Seconds, and the most that was resident, in MiB."""
    command = train_command(root, run, MESH, "--data", str(data), "--checkpoint-every", "5", "--stop-after", "10", "--validation", "0.01",
                            "--validate-every", "5")
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, text
    return time.monotonic() - start, usage.ru_maxrss / 1024


def mark(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"words")


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        large = root / "large.txt"
        large.touch()
        os.truncate(large, SIZE)
        mark(large, 12345)
        if large.stat().st_blocks * 512 > SIZE // 2:
            skip("this file system keeps zeros on disk")
        seconds, page = measured(root, root / "page", root / "text.txt")
        large_seconds, resident = measured(root, root / "run", large)
        assert resident < page + MOST_MIB, f"{resident:.0f} MiB resident, {page:.0f} MiB on a page of text"
        assert large_seconds < seconds + START_SECONDS, f"{large_seconds:.1f} s, {seconds:.1f} s on a page of text"
        again = ["--data", str(large), "--checkpoint-every", "5", "--validation", "0.01", "--resume"]
        train(root, root / "run", MESH, *again, "--stop-after", "12")
        mark(large, 54321)
        assert "was trained on another text" in train(root, root / "run", MESH, *again, code=2)

        # Cut off while it is read.
        command = train_command(root, root / "cut", MESH, "--data", str(large))
        command[command.index("--steps") + 1] = "100000"
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while not ((root / "cut/metrics.jsonl").exists() and (root / "cut/metrics.jsonl").stat().st_size):
            assert process.poll() is None
            time.sleep(0.02)
        os.truncate(large, 1000)
        text = process.communicate(timeout=30)[1]
        assert process.returncode == 1 and f"{large}: cannot be read at byte " in text and "the file has become shorter" in text, text
    print(f"large_text: 50 GB: {resident:.0f} MiB resident, on a page {page:.0f} MiB; {large_seconds:.1f} s for 10 steps, on a page {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
