#!/usr/bin/env python3
"""The lab runs the program as one process a rank over its emulated network, tells how it went, and leaves nothing behind.
Skipped where the lab cannot run (it says why)."""
import json
import os
import pathlib
import subprocess
import tempfile
import time

from switches import skip, skip_case

LAB = pathlib.Path("scripts/lab").resolve()
PIPER = os.environ["PIPER"]
FABRIC = pathlib.Path(PIPER).parent / "piper_fabric"


def lab(flags, *command, **options):
    return subprocess.run([str(LAB), "--fabric", str(FABRIC), *map(str, flags), "--", *map(str, command)], capture_output=True,
                          text=True, timeout=300, check=False, **options)


def lab_when_quiet(flags, *command, tries=4, pause=20):
    """The same, again when other work on the machine let it keep no rates at all. (what was done, why it never ran or None)"""
    for attempt in range(tries):
        done = lab(flags, *command)
        refusals = [line for line in done.stderr.splitlines() if "is not kept here either" in line]
        if not refusals:
            return done, None
        if attempt + 1 < tries:
            print(f"{refusals[0]}; once more in {pause} s", flush=True)
            time.sleep(pause)
    return done, refusals[0]


def namespaces():
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if line.startswith("piperlab")]


def exchanges(folder):
    """2 nodes of 2 ranks, a NIC each: right bytes; each NIC carries what its own rank has for the other node."""
    report = pathlib.Path(folder) / "report.json"
    size = 20000
    done = lab(["--nodes", 2, "--ranks", 2, "--nics", 2, "--nic-rate", 100, "--exact", "--json", report], PIPER, "bench", "alltoall", "--json",
               "--cluster", "{cluster}", "--pair-bytes", size, "--algorithms", "node-aware,halo", "--seconds", 1)
    if done.returncode == 77:
        skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode in (0, 3), done  # 3: other work on the machine cost a packet
    run = json.loads(done.stdout)
    assert run["transport"] == "tcp" and run["ranks"] == 4 and run["nodes"] == 2 and run["wrong"] == 0, run
    assert [point["algorithm"] for point in run["points"]] == ["node-aware", "halo"], run
    for point in run["points"]:
        assert abs(point["limit_seconds"] - 2 * size * 8 / 100e6) < 1e-6, point
        assert point["seconds"] > point["limit_seconds"], point
    links = {link["name"]: link["bytes"] for link in json.loads(report.read_text())["links"]}
    cards = [links[f"node {node} nic {nic} {way}"] for node in range(2) for nic in range(2) for way in ("up", "down")]
    assert min(cards) > 0.8 * max(cards), links  # equal loads: no byte on a foreign NIC
    return done.returncode


def follows_machine(folder):
    """Rates that no machine keeps: the whole network is made slower before the command starts, says so, and the description says the same."""
    report = pathlib.Path(folder) / "slower.json"
    rate, size = 40000, 20000
    asked = ["--nodes", 2, "--ranks", 2, "--nic-rate", rate, "--inner-ratio", 1, "--nic-latency", 20, "--inner-latency", 20, "--json", report]
    begin = time.monotonic()
    done, refusal = lab_when_quiet(asked, PIPER, "bench", "alltoall", "--json", "--cluster", "{cluster}", "--pair-bytes", size, "--algorithms", "flat",
                                   "--seconds", 1)
    if refusal:
        return skip_case("a network that follows the machine", refusal)
    assert done.returncode in (0, 3), done
    slowdown = json.loads(report.read_text())["slowdown"]
    assert slowdown > 1 and f"made {slowdown} times as slow" in done.stderr, done.stderr
    # One NIC a node, four pairs over it: the limit is that of the slower card.
    limit = json.loads(done.stdout)["points"][0]["limit_seconds"]
    assert abs(limit / (4 * size * 8 / (rate * 1e6 / slowdown)) - 1) < 1e-6, (limit, slowdown)
    print(f"{slowdown} times as slow, found in {time.monotonic() - begin:.0f} s with the command")
    done = lab([*asked, "--exact"], "cat", "{cluster}")
    assert "times as slow" not in done.stderr, done.stderr
    levels = json.loads(done.stdout)["levels"]
    assert levels[1]["nic_bytes_per_second"] == rate * 1e6 / 8 and abs(levels[1]["latency_seconds"] - 20e-6) < 1e-12, levels


def failures():
    done = lab(["--nodes", 2, "--ranks", 1], "false")
    assert done.returncode == 1, done
    done = lab(["--nodes", 2, "--ranks", 1, "--seconds", 2], "sleep", "60")
    assert done.returncode != 0 and "stopped" in done.stderr, done
    for flags, said in ((["--nodes", 0], "--nodes is 0"), (["--nics", 5], "--nics is 5; allowed: at most --ranks"),
                        (["--nic-rate", 0], "--nic-rate is 0")):
        done = lab(flags, "true")
        assert done.returncode == 2 and said in done.stderr, done


def without_root():
    if os.geteuid() != 0:
        return skip_case("refusal without root", "this is not root")
    done = subprocess.run(["setpriv", "--reuid", "65534", "--clear-groups", str(LAB), "--", "true"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 77 and "skipped: it needs root" in done.stderr, done


def refusals():
    for flags, said in ((["--mtu", 0], "--mtu is 0; allowed: 576 to 65521"), (["--rack-nodes", -1], "--rack-nodes is -1"),
                        (["--seconds", -1], "--seconds is -1; allowed: 1 to"), (["--nic-rate", "nan"], "--nic-rate is nan"),
                        (["--nodes", 64, "--ranks", 64], "are 4096 ranks; allowed: up to 64")):
        done = lab(flags, "true")
        assert done.returncode == 2 and said in done.stderr, done


def main():
    refusals()
    before = namespaces()
    with tempfile.TemporaryDirectory() as folder:
        refused = exchanges(folder)
        follows_machine(folder)
    failures()
    without_root()
    assert namespaces() == before, (before, namespaces())
    print("the lab carries exchanges, each rank's over its own NIC" + (" (measurement refused: busy machine)" if refused else ""))


if __name__ == "__main__":
    main()
