"""What the environment says to tests written in Python, and what they say when they cannot run.

  PIPER_FULL_COUNTS=1   every promised figure in full; without it, the shortened count that runs on every change

`skip` ends a test (ctest counts exit code 77 as skipped); `skip_case` leaves a part of one out. Both print one line, which
scripts/test counts and its strict form compares with a list of what may be missing.
"""
import os
import pathlib
import sys

FULL_COUNTS = os.environ.get("PIPER_FULL_COUNTS") == "1"


def skip(reason):
    print(f"SKIP: {reason}", flush=True)
    sys.exit(77)


def skip_case(case, reason):
    print(f"SKIPPED CASE: {pathlib.Path(sys.argv[0]).stem}: {case}: {reason}", flush=True)
