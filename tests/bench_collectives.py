#!/usr/bin/env python3
"""`bench flows` and `bench collectives`: what they print, that it is the same twice, and what must hold of any network."""
import json
import os
import subprocess
import sys

PIPER = os.environ.get("PIPER", "build/release/piper")


def ask(*arguments):
    run = subprocess.run([PIPER, "bench", *map(str, arguments), "--json"], capture_output=True, text=True)
    assert run.returncode == 0, (arguments, run.stderr)
    return json.loads(run.stdout)


def refused(*arguments):
    run = subprocess.run([PIPER, "bench", *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == 2, (arguments, run.returncode)
    return run.stderr


def check_curves():
    few = ("collectives", "--nodes", "2,4", "--bytes", "64,1048576")
    asked = ask(*few)
    assert asked == ask(*few), "not the same twice"
    assert len(asked["curves"]) == 8
    for point in asked["curves"]:
        flat = ("naive", "pairwise", "node-aware")
        assert all(point["seconds"][a] >= point["limit_seconds"] * (1 - 1e-9) for a in flat), point
        assert point["seconds"]["node-aware"] <= 1.001 * min(point["seconds"][a] for a in flat), point
    slow = ask(*few, "--message-seconds", "4e-6")
    for a, b in zip(asked["curves"], slow["curves"]):
        assert a["bytes_per_pair"] > 64 or all(b["seconds"][x] > a["seconds"][x] for x in ("naive", "node-aware"))


def check_ranks():
    points = ask("collectives", "--parts", "ranks")["ranks"]
    largest = {p["ranks"]: p["bus_bytes_per_second"] for p in points if p["bytes_a_rank"] == 1 << 28}
    assert largest[8] > 2 * largest[16] > 2 * largest[64] > 0, "the drop at the node boundary"
    # Large exchanges between nodes take what their bytes need at the NIC, and no more than 1 % besides.
    assert all(1 <= p["seconds"] / p["across_seconds"] < 1.01 for p in points if p["nodes"] > 1 and p["bytes_a_rank"] == 1 << 28)


def check_phases():
    for p in ask("collectives", "--parts", "phases", "--nodes", "2,4")["phase_one"]:
        assert 0 <= p["hidden_under_three"] <= p["hidden_under_two"] + 0.05 and p["hidden_under_two"] <= 1, p


def check_flows():
    rows = ask("flows", "--nodes", "2", "--repeats", 1, "--algorithms", "node-aware,halo")["rows"]
    assert [r["num_messages"] for r in rows if r["algorithm"] == "node-aware"] == [16 * 15]
    assert all(r["flows_per_second"] > 0 for r in rows)


def check_bad_input():
    assert "allowed: 1 to 9856" in refused("flows", "--nodes", "10000")
    one = ["flows", "--nodes", 8, "--bytes", 65536, "--repeats", 1, "--algorithms", "node-aware", "--fabric"]
    for shape in ("fat-tree", "dragonfly", "two-centres"):  # narrower uplinks: never faster, and at a factor of 16 slower
        seconds = [ask(*one, f"{shape}:{ratio}")["rows"][0]["predicted_seconds"] for ratio in (1, 2, 16)]
        assert seconds == sorted(seconds) and (shape == "dragonfly" or seconds[2] > 1.5 * seconds[0]), (shape, seconds)
    assert ask(*one, "rails")["rows"][0]["predicted_seconds"] > 0
    assert "allowed: fat-tree, rails" in refused(*one, "ring")
    assert "an even number" in refused("flows", "--nodes", 3, "--fabric", "two-centres")
    sparse = ask("flows", "--nodes", "2", "--repeats", 1, "--algorithms", "node-aware", "--peers", 3)
    assert sparse["num_peers"] == 3 and sparse["rows"][0]["num_messages"] == 3 * sparse["rows"][0]["num_members"], sparse
    assert "nothing to scatter over" in refused("collectives", "--cluster", "rtx2080ti", "--nodes", "2")


def main():
    check_curves()
    check_ranks()
    check_phases()
    check_flows()
    check_bad_input()
    print("bench_collectives: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
