#!/usr/bin/env python3
"""A file system that fills up while a run saves: the old checkpoint stays, bytes needed and free are said, the exit code is 1."""
import pathlib
import subprocess
import sys
import tempfile

from switches import skip
from tiny_run import PIPER, train, write_inputs


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        train(root, root / "measure", (2, 1, 1), "--checkpoint-every", "5", "--stop-after", "5")
        saved = sum(f.stat().st_size for f in (root / "measure/checkpoints").rglob("*") if f.is_file())
        small = root / "small"
        small.mkdir()
        size = saved * 7 // 4  # room for one checkpoint, not for two
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(small)], capture_output=True).returncode:
            skip("mounting a small file system needs root")
        try:
            for waiting in ([], ["--no-async-save"]):
                out = train(root, small / "run", (2, 1, 1), "--checkpoint-every", "5", "--keep-checkpoints", "9", "--fresh", *waiting, code=1)
                for piece in ("step-00000010: not saved; earlier checkpoints are untouched", "the disk is full", " are needed, ", " are free"):
                    assert piece in out, f"'{piece}' is not in {out}"
                verify = subprocess.run([PIPER, "checkpoint", "verify", str(small / "run")], capture_output=True, text=True)
                assert verify.returncode == 0 and "step-00000005" in verify.stdout, verify.stdout + verify.stderr
                assert "step-00000010" not in verify.stdout and "unfinished" not in verify.stdout, verify.stdout
            assert "resuming after step 5 " in train(root, small / "run", (1, 2, 2), "--resume", "--stop-after", "8")
        finally:
            subprocess.run(["umount", str(small)], check=True)
    print("disk_full: a full file system ends the run with 1 and keeps the old checkpoint")
    return 0


if __name__ == "__main__":
    sys.exit(main())
