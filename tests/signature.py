#!/usr/bin/env python3
"""Behaviour has not changed unnoticed: `piper signature` prints the golden value.

After a change that is meant to move it: piper signature --verbose shows what it covers; write the new value into
tests/golden/signature.txt and say in the commit why it moved.
"""
import os
import pathlib
import subprocess
import sys

PIPER = os.environ.get("PIPER", "build/release/piper")


def main():
    golden = (pathlib.Path(__file__).parent / "golden/signature.txt").read_text().strip()
    printed = subprocess.run([PIPER, "signature", "--verbose"], capture_output=True, text=True, check=True).stdout
    signature = printed.strip().splitlines()[-1]
    if signature == golden:
        print(f"signature: {signature}")
        return 0
    print(f"signature: {signature}, golden: {golden}; what it covers now:\n{printed}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
