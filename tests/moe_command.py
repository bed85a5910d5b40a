#!/usr/bin/env python3
"""`piper moe`: the schedules of a mixture layer beside each other, and what this Piper trains of them."""
import json
import os
import subprocess

PIPER = os.environ.get("PIPER", "build/release/piper")
LAYER = ["--model", "mixtral-8x7b", "--cluster", "a800", "--sequence", "8192"]
NAMES = ["plain", "parm-baseline", "parm-s1", "parm-s2", "monta-o1", "monta-o2", "monta-o3", "chunked", "fastermoe"]
PARTS = ("exchange_seconds", "gather_seconds", "copy_seconds", "experts_seconds")


def piper(*arguments, code=0):
    run = subprocess.run([PIPER, "moe", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert run.returncode == code, (arguments, run.returncode, run.stderr)
    return run.stdout if code == 0 else run.stderr


def schedules(*arguments):
    answer = json.loads(piper(*LAYER, *arguments, "--json"))
    assert [s["schedule"] for s in answer["schedules"]] == NAMES
    return answer, {s["schedule"]: s for s in answer["schedules"]}


def check_prices():
    """Two nodes of eight, an expert on a node's eight ranks: MoNTA's own mesh."""
    answer, by_name = schedules("--tp", 8, "--etp", 8, "--ep", 2)
    assert answer["ranks"] == 16 and answer["tokens"] == 8192
    for name, s in by_name.items():
        both = s["forward"]["seconds"] + s["backward"]["seconds"]
        assert abs(both - s["seconds"]) < 1e-12, name
        for direction in ("forward", "backward"):
            apart = sum(s[direction][part] for part in PARTS)
            assert s[direction]["seconds"] <= apart * (1 + 1e-9), (name, direction)
        assert s["num_chunks"] == 1 or name in ("monta-o2", "monta-o3", "chunked", "fastermoe"), name
    assert answer["best"] == min(NAMES, key=lambda name: by_name[name]["seconds"]) == "monta-o3"
    assert answer["why"].startswith("monta-o3 takes 0.") and "of exchanges" in answer["why"], answer["why"]
    # 8192 tokens x 2 copies x 4096 bf16 values, half of them to the other node, four times.
    assert by_name["plain"]["bytes_between_nodes"] == 4 * 8192 * 2 * 4096 * 2 / 2
    assert by_name["monta-o1"]["bytes_between_nodes"] * 8 == by_name["plain"]["bytes_between_nodes"]


def check_trained():
    """Without tp the plain schedule is what `train` runs; what has no name in a strategy is priced alone."""
    _, by_name = schedules("--ep", 8)
    assert by_name["plain"]["trained"] and "not_trained" not in by_name["plain"]
    for name in ("parm-baseline", "parm-s2", "monta-o1", "monta-o2", "monta-o3"):
        assert not by_name[name]["trained"] and by_name[name]["not_trained"], name
    _, by_name = schedules("--tp", 8, "--ep", 8)
    for name, s in by_name.items():
        assert s["trained"] == (name not in ("parm-baseline", "monta-o3")), (name, s)
    _, by_name = schedules("--tp", 8, "--etp", 2, "--ep", 8)
    for name, s in by_name.items():
        assert s["trained"] == (name != "monta-o3"), (name, s)


def check_text():
    text = piper(*LAYER, "--tp", 8, "--etp", 8, "--ep", 2)
    for piece in (*NAMES, "between nodes", "this Piper", "monta-o3 takes 0.", "not trained: monta-o3"):
        assert piece in text, piece
    # One node: nothing crosses, so chunks of rows that are gathered over one link do not pay.
    assert "parm-s1 takes 0." in piper(*LAYER, "--tp", 8, "--ep", 8)


def check_refusals():
    for arguments, pieces in (
        (["--model", "mixtral-8x7b"], ["--cluster is required"]),
        (["--paper", "parm"], ["moe --paper moved: run piper-studies statements parm"]),
        ([*LAYER, "--tp", 3, "--etp", 2], ["--tp is 3 and --etp 2", "divides"]),
        ([*LAYER, "--ep", 3], ["'mesh.ep' is 3"]),
        (["--model", "mixtral-8x7b", "--cluster", "rtx4090x8", "--ep", 8, "--etp", 2], ["16 ranks", "8 devices"]),
        ([*LAYER, "--precision", "fp9"], ["fp9"]),
    ):
        said = piper(*arguments, code=2)
        assert all(piece in said for piece in pieces), (arguments, said)


def main():
    check_prices()
    check_trained()
    check_text()
    check_refusals()
    print("moe_command: passed")


if __name__ == "__main__":
    main()
