#!/usr/bin/env python3
"""The simulator of collectives (piper/sim/simulate_flows.h) against SimGrid's SMPI, which shares links by max-min fairness where
Piper queues messages: the same step lists over the same ports, within 10 %.

Needs smpicc and smpirun (Debian: libsimgrid-dev, 20 MB); skipped without them. `--all` simulates every case and prints the
table of docs/collectives.md; without it, a few small ones.

SimGrid's defaults are a calibration of Ethernet: its factors and its TCP window are off. So is its lazy update (`network/optim`): in 3.32
messages that enter a shared link at the same instant may each get all of it (docs/collectives.md).
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from switches import skip

PROBE = os.environ.get("SIMGRID_PROBE", "build/planner/simgrid_probe")
SOURCE = pathlib.Path(__file__).parent / "simgrid_replay.c"
TOLERANCE = 0.10
ALGORITHMS = ("naive", "node-aware", "pairwise", "2d", "leader", "halo-printed", "halo")
SIZES = ((64, "1e-6"), (4096, "0"), (65536, "0"), (1048576, "0"))


def is_comparable(algorithm, size):
    """MPI keeps the packets of one pair apart only by waiting for each to arrive, a latency each: no matter for long ones."""
    return algorithm != "halo" or size >= 1048576


FEW = [("flat-16", a, *s) for a in ALGORITHMS for s in SIZES if is_comparable(a, s[0])]
ALL = FEW + [(shape, a, *s) for shape in ("shared-NICs-64", "fat-tree-64", "dragonfly-128") for a in ALGORITHMS for s in SIZES
             if is_comparable(a, s[0])]
SETTINGS = ["smpi/bw-factor:0:1.0", "smpi/lat-factor:0:1.0", "network/TCP-gamma:1e18", "network/weight-S:0",
            "network/crosstraffic:0", "network/optim:Full", "smpi/send-is-detached-thresh:0", "smpi/async-small-thresh:0",
            "smpi/simulate-computation:no", "smpi/wtime:0", "maxmin/precision:1e-3"]


def seconds_of(text):
    return float(next(line for line in text.splitlines() if line.startswith("seconds ")).split()[1])


def simulated(shape, algorithm, size, startup, folder):
    for old in folder.iterdir():
        old.unlink()
    run = subprocess.run([PROBE, shape, algorithm, str(size), str(folder), startup], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return seconds_of(run.stdout)


def replayed(program, folder, startup):
    num_ranks = len((folder / "hosts").read_text().split())
    run = subprocess.run(
        ["smpirun", "-np", str(num_ranks), "-hostfile", folder / "hosts", "-platform", folder / "platform.xml",
         *("--cfg=" + s for s in SETTINGS + ([f"smpi/ois:0:{startup}:0"] if startup != "0" else [])),
         "--log=root.thres:error", program, folder], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    return seconds_of(run.stdout)


def main():
    if not shutil.which("smpicc") or not shutil.which("smpirun"):
        skip("no smpicc or smpirun here (Debian: libsimgrid-dev)")
    worst = 0
    with tempfile.TemporaryDirectory() as name:
        program, folder = pathlib.Path(name) / "replay", pathlib.Path(name) / "case"
        folder.mkdir()
        subprocess.run(["smpicc", "-O1", SOURCE, "-o", program], check=True)
        print(f"{'network':16s} {'algorithm':13s} {'bytes':>8s} {'start-up':>8s} {'simulated':>12s} {'SimGrid':>12s} {'off':>7s}")
        for shape, algorithm, size, startup in ALL if "--all" in sys.argv else FEW:
            ours = simulated(shape, algorithm, size, startup, folder)
            theirs = replayed(program, folder, startup)
            off = ours / theirs - 1
            worst = max(worst, abs(off))
            print(f"{shape:16s} {algorithm:13s} {size:8d} {startup:>8s} {ours * 1e6:9.1f} us {theirs * 1e6:9.1f} us {off:+7.1%}",
                  flush=True)
    print(f"simgrid: worst {worst:.1%}")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
