#!/usr/bin/env python3
"""`piper bench alltoall --transport nccl` over the stand-in: every algorithm brings the right bytes, and what is missing is said."""
import json
import os
import subprocess

PIPER = os.environ["PIPER"]
STAND_IN = os.environ["STAND_IN"]


def run(*words, code=0, **variables):
    done = subprocess.run([PIPER, "bench", "alltoall", "--transport", "nccl", *words], capture_output=True, text=True, timeout=300,
                          check=False, env={**os.environ, "PIPER_NCCL": STAND_IN, "PIPER_CUDART": STAND_IN, **variables})
    assert done.returncode == code, done
    return done


def refused(said, *words, **variables):
    line = run(*words, code=2, **variables).stderr
    assert said in line and line.count("\n") == 1, line


told = json.loads(run("--ranks", "4", "--pair-bytes", "0,1000,20000", "--load", "hot-rank:3", "--seconds", "1", "--rounds", "1",
                      "--json").stdout)
assert told["wrong"] == 0 and len(told["points"]) == 36, told
assert all(point["transport"] == "nccl" and point["wrong"] == 0 for point in told["points"]), told

refused("NCCL cannot be opened: /nowhere/libnccl.so", PIPER_NCCL="/nowhere/libnccl.so")
refused("the CUDA runtime cannot be opened: /nowhere/libcudart.so", PIPER_CUDART="/nowhere/libcudart.so")
refused("rank 8 is number 9 of its host, which has 8 devices; allowed: a device for each rank", "--ranks", "9")
print(f"bench_nccl: {len(told['points'])} points")
