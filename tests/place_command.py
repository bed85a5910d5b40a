#!/usr/bin/env python3
"""`piper place`: the map, the files for launchers (mpirun reads the rankfile, where it is installed), which nodes to ask for."""
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

from switches import skip_case

PIPER = os.environ.get("PIPER", "build/release/piper")
STRATEGY = ["--model", "qwen3-30b-a3b", "--cluster", "frontier", "--pp", "1", "--ep", "32", "--dp", "64"]
TOPOLOGY = """SwitchName=s1 Nodes=node[001-003]
SwitchName=s2 Nodes=node[004-008]
SwitchName=s3 Nodes=node[009-012]
SwitchName=r1 Switches=s[1-2]
SwitchName=r2 Switches=s3
SwitchName=root Switches=r[1-2]
"""


def piper(*arguments, code=0):
    run = subprocess.run([PIPER, "place", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert run.returncode == code, (arguments, run.returncode, run.stderr)
    return run.stdout if code == 0 else run.stderr


def said_by_piper(file):
    """The lines behind the comment that says whose the file is, which Open MPI and Slurm pass over."""
    first, *lines = file.read_text().splitlines()
    assert first == "# written by piper", first
    return lines


def check_map(folder, topology):
    """Every rank once, no node overfilled, files and JSON say the same."""
    nodes = "node[001,004,002,005,003,006,007-008]"
    placed = json.loads(piper(*STRATEGY, "--nodes", nodes, "--topology", topology, "--rankfile", folder / "ranks",
                              "--hostfile", folder / "hosts", "--json"))
    ranks = placed["ranks"]
    assert [r["rank"] for r in ranks] == list(range(64))
    assert len({(r["node"], r["slot"]) for r in ranks}) == 64 and all(0 <= r["slot"] < 8 for r in ranks)
    lines = [re.fullmatch(r"rank (\d+)=(\S+) slot=(\d+)", line).groups() for line in said_by_piper(folder / "ranks")]
    assert lines == [(str(r["rank"]), r["node"], str(r["slot"])) for r in ranks]
    assert said_by_piper(folder / "hosts") == [r["node"] for r in ranks]
    busy = placed["links_busy_seconds"]
    assert busy["lower_bound"] <= busy["placed"] < busy["given"], busy
    assert placed["exchange"]["placed_seconds"] < placed["exchange"]["given_seconds"]
    # One group of 32 ranks fits four of the five nodes of s2, the other takes the rest.
    switch = {n["node"]: n["groups"][0] for n in placed["nodes"]}
    on = [{switch[r["node"]] for r in ranks if r["expert_group"] == group} for group in (0, 1)]
    assert sorted(map(len, on)) == [1, 2], on
    again = json.loads(piper(*STRATEGY, "--nodes", nodes, "--topology", topology, "--json"))
    assert again["ranks"] == ranks
    text = piper(*STRATEGY, "--nodes", nodes, "--topology", topology)
    for piece in ("root / r1 / s2", "stage 0: group", "across switch_groups", "as given", "simulated"):
        assert piece in text, piece


def check_inputs(folder, topology):
    described = folder / "groups.json"
    described.write_text(json.dumps({"node[001-003]": ["s1", "r1", "root"], "node[004-008]": ["s2", "r1", "root"],
                                     "node[009-012]": ["s3", "r2", "root"]}))
    nodes = "node[001-012]"
    same = [json.loads(piper(*STRATEGY, "--nodes", nodes, "--topology", t, "--json")) for t in (topology, described)]
    assert same[0]["ranks"] == same[1]["ranks"] and same[0]["links_busy_seconds"] == same[1]["links_busy_seconds"]
    # Uneven: 7 nodes of 8 and two of 4.
    uneven = json.loads(piper(*STRATEGY, "--nodes", "node[001-009]", "--topology", topology, "--ranks-per-node", "8(x7),4(x2)", "--json"))
    assert sorted(len(n["ranks"]) for n in uneven["nodes"]) == [4, 4] + [8] * 7
    # The cluster's own levels: node 5 is on the second switch of four.
    by_number = json.loads(piper(*STRATEGY, "--nodes", "n[0-8]", "--json"))
    assert by_number["nodes"][5]["groups"] == ["switch_group 1", "cabinet 0"]
    strategy = folder / "strategy.json"
    planned = {"mesh": {"pp": 2, "ep": 4, "dp": 8}, "layers_per_stage": [24, 24], "schedule": "1f1b", "recompute": "none",
               "precision": "bf16", "sequence": 4096, "global_batch_sequences": 64, "micro_batch_sequences": 1, "num_micro_batches": 8,
               "cluster": "dgx-h100"}
    strategy.write_text(json.dumps(planned))
    read = json.loads(piper("--model", "qwen3-30b-a3b", "--strategy", strategy, "--nodes", "n[0-1]", "--json"))
    assert {r["stage"] for r in read["ranks"]} == {0, 1} and "exchange" in read
    strategy.write_text(json.dumps({**planned, "all_to_all": "halo-dedup"}))
    assert "exchange" not in json.loads(piper("--model", "qwen3-30b-a3b", "--strategy", strategy, "--nodes", "n[0-1]", "--json"))


def plan(*arguments, code=0):
    run = subprocess.run([PIPER, "plan", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert run.returncode == code, (arguments, run.returncode, run.stderr)
    return run.stdout if code == 0 else run.stderr


def check_plan(folder, topology):
    """`piper plan --nodes`: the plan is for as many ranks as the nodes take, and comes with their places."""
    thin = json.loads(subprocess.run([PIPER, "cluster", "frontier", "--json"], capture_output=True, text=True, check=True).stdout)
    thin["levels"][2]["bandwidth_bytes_per_second"] /= 16
    machine = folder / "thin.json"
    machine.write_text(json.dumps(thin))
    asked = ["--model", "olmoe-1b-7b", "--cluster", machine, "--ep", 32, "--pp", 1, "--sequence", 4096, "--global-batch", 512,
             "--topology", topology]
    for search in (["--runnable"], ["--tp", 1, "--etp", 1, "--cp", 1, "--trainer", "piper"]):
        out = folder / "placed.json"
        nodes = "node[004,009,005,010,006,011,007,012]"  # four of a switch in turns: two groups of 32 fit
        found = json.loads(plan(*asked, *search, "--nodes", nodes, "--rankfile", folder / "ranks", "--hostfile", folder / "hosts",
                                "--out", out, "--json"))
        placed, best = found["placement"], found["placement"]["ranked"][0]
        assert len(placed["ranks"]) == 64 == json.loads(out.read_text())["mesh"]["dp"]
        assert said_by_piper(folder / "hosts") == [r["node"] for r in placed["ranks"]]
        seconds = [one["step_seconds_placed"] for one in placed["ranked"]]
        assert seconds == sorted(seconds) and len(seconds) > 1
        assert best["step_seconds_placed"] < 0.99 * best["step_seconds_as_listed"], best
        # What place says of the strategy that was written, plan has said already.
        again = json.loads(piper("--model", "olmoe-1b-7b", "--cluster", machine, "--strategy", out, "--nodes", nodes, "--topology",
                                 topology, "--json"))
        assert again["ranks"] == placed["ranks"]
        text = plan(*asked, *search, "--nodes", nodes, "--rankfile", folder / "ranks")
        for piece in ("on these nodes", "ranks placed", "stage 0: group", "--rankfile"):
            assert piece in text, piece
    for arguments, piece in [(["--rankfile", folder / "r"], "give --nodes too"), (["--ranks-per-node", "8"], "give --nodes too"),
                             (["--nodes", "node001", "--devices", 9], "take 8"), (["--nodes", "node001", "--min-devices"], "one plan")]:
        assert piece in plan("--model", "olmoe-1b-7b", "--cluster", "frontier", "--trainer", "piper", *arguments, code=2), arguments


def check_choice(topology):
    chosen = json.loads(piper(*STRATEGY, "--free", "node[001-003,005-012]", "--count", 8, "--topology", topology, "--json"))
    choice = chosen["choice"]
    assert choice["links_busy_seconds"] < choice["links_busy_seconds_of_first"]
    assert choice["switches"] == 2 and choice["units_of_first"][0] == 3
    assert chosen["nodelist"] == "node[005-012]"
    text = piper(*STRATEGY, "--free", "node[001-003,005-012]", "--count", 8, "--topology", topology)
    assert "--nodelist=node[005-012] --switches=2" in text


def check_refusals(folder, topology):
    nodes = ["--nodes", "node[001-008]", "--topology", topology]
    for arguments, pieces in [
        ([*STRATEGY], ["--nodes is missing"]),
        ([*STRATEGY, *nodes, "--free", "x"], ["--nodes beside --free"]),
        ([*STRATEGY, "--free", "node001"], ["--count"]),
        ([*STRATEGY, "--nodes", "node[001-"], ["node[001-", "not closed"]),
        ([*STRATEGY, "--nodes", "node[001-007]", "--topology", topology], ["64 ranks", "56"]),
        ([*STRATEGY, "--nodes", "node099", "--topology", topology], ["node099", "no switch"]),
        ([*STRATEGY, *nodes, "--ranks-per-node", "9"], ["9 ranks", "1 to 8"]),
        ([*STRATEGY, *nodes, "--ranks-per-node", "8,8"], ["--ranks-per-node", "8 in all"]),
        ([*STRATEGY, *nodes, "--levels", "rack,x,y"], ["--levels", "rack", "switch_group"]),
        ([*STRATEGY, "--nodes", "login[1-8]", "--levels", "cabinet"], ["--levels without --topology"]),
        ([*STRATEGY, "--nodes", "head"], ["head", "by its number"]),
        ([*STRATEGY, *nodes, "--rankfile", folder / "none" / "x"], ["--rankfile", "none"]),
    ]:
        message = piper(*arguments, code=2)
        for piece in pieces:
            assert piece in message, (arguments, piece, message)
        assert all(line.startswith("piper: ") for line in message.splitlines()), message
    assert "absent" in piper(*STRATEGY, "--nodes", "n1", "--topology", folder / "absent", code=1)


def check_mpirun(folder):
    """Open MPI itself starts ranks where the rankfile says: all on this host, in the order of slots."""
    mpirun = shutil.which("mpirun")
    if not mpirun or "Open MPI" not in subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout:
        skip_case("Open MPI's reading of the rankfile", "Open MPI's mpirun is not there")
        return
    if (os.cpu_count() or 1) < 2:
        skip_case("Open MPI's reading of the rankfile", "there is one core")
        return
    host = socket.gethostname()
    described = folder / "here.json"
    described.write_text(json.dumps({host: ["switch"]}))
    ranks = folder / "here.ranks"
    piper("--model", "piper-10m", "--cluster", "dgx-h100", "--dp", 2, "--nodes", host, "--topology", described, "--ranks-per-node", 2,
          "--rankfile", ranks)
    run = subprocess.run([mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "2", "--rankfile", str(ranks), "--report-bindings",
                          "sh", "-c", "echo rank $OMPI_COMM_WORLD_RANK"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.split("\n")) == ["", "rank 0", "rank 1"], run.stdout
    broken = folder / "broken.ranks"
    broken.write_text(ranks.read_text().replace("rank 1", "rank 7"))
    wrong = subprocess.run([mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "2", "--rankfile", str(broken), "true"],
                           capture_output=True, text=True, timeout=60)
    assert wrong.returncode != 0, "mpirun does not read the rankfile"
    print("place_command: Open MPI starts the ranks by the rankfile")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        topology = folder / "topology.conf"
        topology.write_text(TOPOLOGY)
        check_map(folder, topology)
        check_inputs(folder, topology)
        check_plan(folder, topology)
        check_choice(topology)
        check_refusals(folder, topology)
        check_mpirun(folder)
    print("place_command: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
