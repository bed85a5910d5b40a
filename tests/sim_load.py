#!/usr/bin/env python3
"""`sim`, `estimate` and `plan` under a load that is not balanced, with stragglers and jitter; the page; the bench.

Measured routing traces are used when PIPER_ROUTING_TRACES names a folder with *layer_expert.csv.gz (32 experts); nothing
else here needs them.
"""
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from switches import FULL_COUNTS, skip_case

PIPER = os.environ.get("PIPER", "build/release/piper")
SMALL = ["--model", "piper-100m", "--cluster", "dgx-h100", "--pp", 2, "--ep", 4, "--dp", 8]
BALANCED = ["--load", "balanced", "--samples", 1]


def piper(*arguments, code=0):
    run = subprocess.run([PIPER, *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == code, (arguments, run.returncode, run.stderr)
    return run.stdout if code == 0 else run.stderr


def ask(*arguments):
    return json.loads(piper(*arguments, "--json"))


def check_loads():
    plain = ask("sim", *SMALL, *BALANCED)
    assert "sampled" not in plain and plain["load"] == "balanced"
    # Where nothing is said the load is the plan's default, whose one step is what `estimate` prices.
    usual = ask("sim", *SMALL)
    assert "sampled" not in usual and usual["load"] == "zipf:0.1" and plain["step_seconds"] < usual["step_seconds"]
    assert ask("estimate", *SMALL)["predicted"]["step_seconds"] == usual["step_seconds"]
    assert "times the mean" in piper("sim", *SMALL) and "load balanced" in piper("sim", *SMALL, *BALANCED)
    for load in ("zipf:0.9", "hot-expert:3", "hot-rank:2", "drift:0.8"):
        drawn = ["--load", load, "--samples", 6, "--seed", 4]
        simulated, closed = ask("sim", *SMALL, *drawn)["sampled"], ask("estimate", *SMALL, *drawn)["under_load"]
        assert simulated == ask("sim", *SMALL, *drawn)["sampled"], "not the same twice"
        assert simulated["num_samples"] == closed["num_samples"] == 6
        mean, p95, worst = (simulated["step_seconds"][figure] * (1 + i * 1e-12) for i, figure in enumerate(("mean", "p95", "worst")))
        assert plain["step_seconds"] < mean <= p95 <= worst, (load, plain["step_seconds"], mean, p95, worst)  # but for rounding
        for figure in ("mean", "p95", "worst"):
            for of, tolerance in (("step_seconds", 0.03), ("peak_bytes", 0.03)):
                error = closed[of][figure] / simulated[of][figure] - 1
                assert abs(error) < tolerance, (load, of, figure, error)
    uniform = ask("sim", *SMALL, "--load", "uniform", "--samples", 2)["sampled"]["step_seconds"]
    assert abs(uniform["worst"] / plain["step_seconds"] - 1) < 1e-9


def check_disturbances(folder):
    plain = ask("sim", *SMALL)["step_seconds"]
    slow = ask("sim", *SMALL, "--straggler", "3:2")["step_seconds"]
    two = ask("sim", *SMALL, "--straggler", "3:2", "--straggler", "9:2")["step_seconds"]
    assert plain < slow <= two < 2 * plain
    jitter = [ask("sim", *SMALL, "--jitter", 0.1, "--samples", 3, "--seed", seed)["sampled"] for seed in (1, 1, 2)]
    assert jitter[0] == jitter[1] != jitter[2] and jitter[0]["step_seconds"]["mean"] > plain
    assert "allowed: RANK:FACTOR" in piper("sim", *SMALL, "--straggler", "16:2", code=2)
    for wrong in ("3", "3:", ":2", "3:0", "3:-1", "3:nan", "x:2", "3:2x"):
        assert "allowed: RANK:FACTOR" in piper("sim", *SMALL, "--straggler", wrong, code=2), wrong
    assert "--jitter" in piper("sim", *SMALL, "--jitter", "nan", code=2)
    assert "did you mean 'zipf'" in piper("sim", *SMALL, "--load", "zpf:1", code=2)
    assert "hot-expert:9" in piper("sim", *SMALL, "--load", "hot-expert:9", code=2)
    assert "no such file" in piper("estimate", *SMALL, "--load", f"trace:{folder}/none.csv", code=2)
    page = folder / "step.html"
    piper("sim", *SMALL, "--html", page)
    assert "<svg" in page.read_text() and "Live memory over the step" in page.read_text()


def check_traces(folder):
    # Eight experts, two steps: balanced, then everything to the first.
    made = folder / "made.csv"
    made.write_text("iter,layer," + ",".join(f"e{i}" for i in range(8)) + "\n1,0,5,5,5,5,5,5,5,5\n2,0,40,0,0,0,0,0,0,0\n")
    two = ask("sim", *SMALL, "--load", f"trace:{made}", "--samples", 2)["sampled"]["step_seconds"]
    plain = ask("sim", *SMALL, *BALANCED)["step_seconds"]
    assert two["worst"] > plain and abs(2 * two["mean"] - two["worst"] - plain) < 1e-6 * plain
    packed = folder / "made.csv.gz"
    packed.write_bytes(gzip.compress(made.read_bytes()))
    assert ask("sim", *SMALL, "--load", f"trace:{packed}", "--samples", 2)["sampled"]["step_seconds"] == two
    ranks = folder / "ranks.csv"
    ranks.write_text("iter,rank,layer,e0,e1,e2,e3,e4,e5,e6,e7\n1,0,0,5,5,0,5,5,5,0,5\n1,1,0,0,0,5,0,0,0,5,0\n2,0,0,40,0,0,0,0,0,0,0\n")
    texts = folder / "texts.json"
    texts.write_text(json.dumps({"data": {"a": [[5] * 8], "b": [[40] + [0] * 7], "c": [[1] * 64]}}))
    for same in (ranks, texts):
        assert ask("sim", *SMALL, "--load", f"trace:{same}", "--samples", 2)["sampled"]["step_seconds"] == two, same
    packed.write_bytes(packed.read_bytes()[:40])
    assert "is cut off" in piper("sim", *SMALL, "--load", f"trace:{packed}", code=2)
    # Experts that are not as many as the model's lend their distribution, and that is said.
    other = ["--model", "gpt-oss-20b", "--cluster", "dgx-h100", "--load", f"trace:{made}", "--samples", 2]
    note = "8 experts of the trace stretched over 32"
    assert note in piper("sim", *other) and note in piper("estimate", *other) and note in piper("estimate", *other, "--trainer", "piper")
    assert ask("estimate", *other, "--trainer", "piper")["under_load"]["load_note"] == note
    for more in ([], ["--runnable"]):
        assert note in piper("plan", *other, "--devices", 8, *more) and ask("plan", *other, "--devices", 8, *more)["load_note"] == note
    measured = sorted(pathlib.Path(os.environ.get("PIPER_ROUTING_TRACES", "/nonexistent")).glob("*layer_expert.csv.gz"))
    if not measured:
        skip_case("measured traces", "PIPER_ROUTING_TRACES names no folder with *layer_expert.csv.gz")
        return
    trace = measured[0]
    model = ["--model", "gpt-oss-20b", "--cluster", "dgx-h100", "--pp", 2, "--ep", 8, "--dp", 8, "--load", f"trace:{trace}", "--samples", 8]
    simulated, closed = ask("sim", *model)["sampled"], ask("estimate", *model)["under_load"]
    for figure in ("mean", "p95", "worst"):
        assert abs(closed["step_seconds"][figure] / simulated["step_seconds"][figure] - 1) < 0.03
    for file in (*trace.parent.glob("*per_rank*.csv.gz"), *trace.parent.glob("*expert_counts.json")):
        estimated = ask("estimate", *model[:-4], "--load", f"trace:{file}", "--samples", 4)["under_load"]
        assert estimated["step_seconds"]["worst"] > ask("estimate", *model[:-4], *BALANCED)["predicted"]["step_seconds"], file
        print("sim_load:", file.name, estimated.get("load_note", ""))
    print("sim_load: measured trace:", {k: round(v, 4) for k, v in simulated["step_seconds"].items()},
          "balanced:", round(ask("sim", *model[:-4], *BALANCED)["step_seconds"], 4))


def check_plan(folder):
    model = ["plan", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--devices", 64]
    for more, statistics in ([], ("mean", "p95", "worst")), (["--runnable"], ("p95", "mean", "worst")):
        for statistic in statistics if FULL_COUNTS else statistics[:1]:
            strategies = ask(*model, *more, "--load", "zipf:0.4", "--samples", 6, "--for", statistic)["strategies"]
            under = [s["predicted"]["under_load"]["step_seconds"][statistic] for s in strategies]
            # The first is the best of those within 1 % of the fastest.
            assert len(under) > 4 and under[1:] == sorted(under[1:]) and under[0] <= 1.01 * min(under)
    # What an uneven load costs is what `estimate` says.
    small = ["plan", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--devices", 16, "--global-batch", 64, "--ep", 8, "--trainer", "piper"]
    even, usual, hot = (ask(*small, *load) for load in (["--load", "balanced"], [], ["--load", "hot-rank:2", "--samples", 3]))
    best = [answer["strategies"][0]["predicted"] for answer in (even, usual, hot)]
    assert best[0]["step_seconds"] < best[1]["step_seconds"] < best[2]["step_seconds"]
    assert [answer["load"] for answer in (even, usual, hot)] == ["balanced", "zipf:0.1", "hot-rank:2"] == [b["load"] for b in best]
    assert [b["heavy_load"]["load"] for b in best] == ["zipf:0.3"] * 3
    assert abs(hot["imbalance_by_ep"]["8"] - 2) < 1e-12
    same = ask(*small, "--imbalance", 2)["strategies"][0]["predicted"]["step_seconds"]
    assert abs(best[2]["step_seconds"] / same - 1) < 1e-9
    (folder / "hot.json").write_text(json.dumps(hot["strategies"][0]))
    one = ["estimate", *small[1:5], "--strategy", folder / "hot.json"]
    closed = ask(*one, "--trainer", "piper", "--load", "hot-rank:2", "--samples", 3)["under_load"]["step_seconds"]["p95"]
    assert abs(closed / hot["strategies"][0]["predicted"]["closed_form_seconds"] - 1) < 1e-9
    assert ask(*one, "--load", "hot-rank:2", "--samples", 3)["under_load"]["num_samples"] == 3  # not what this Piper runs
    assert "mean" in piper(*one, "--load", "zipf:1")
    assert "did you mean 'zipf'" in piper(*one, "--load", "zpf:1", code=2)
    assert "leave out --imbalance" in piper(*small, "--load", "zipf:1", "--imbalance", 2, code=2)
    assert "give --load too" in piper(*model, "--for", "p95", code=2)
    assert "allowed: mean, p95, worst" in piper(*model, "--load", "zipf:1", "--for", "p96", code=2)


def check_scatter(folder):
    """A machine of CPUs whose equal tasks were measured to scatter: `sim` predicts what `plan` does."""
    machine = json.loads(piper("cluster", "dgx-h100", "--json"))
    machine["kind"] = "cpu"
    machine.setdefault("numbers", {})["task_scatter_ratio"] = 0.2
    machine["cores_per_node"] = 4
    (folder / "scatters.json").write_text(json.dumps(machine))
    asked = ["--model", "piper-100m", "--cluster", folder / "scatters.json"]
    best = ask("plan", *asked, "--devices", 16)["strategies"][0]
    (folder / "best.json").write_text(json.dumps(best))
    simulated = ask("sim", *asked, "--strategy", folder / "best.json")
    calm = ask("sim", *asked, "--strategy", folder / "best.json", "--jitter", 0)
    assert simulated["task_scatter"] == 0.2 and "task_scatter" not in calm
    assert simulated["step_seconds"] > calm["step_seconds"] and simulated["peak_bytes"] == calm["peak_bytes"]
    assert abs(simulated["step_seconds"] / best["predicted"]["step_seconds"] - 1) < 1e-9, (simulated["step_seconds"], best["predicted"])
    assert abs(simulated["mfu"] / best["predicted"]["mfu"] - 1) < 1e-9
    assert "scatter by 0.20" in piper("sim", *asked, "--strategy", folder / "best.json")
    # The page of a plan simulates what was priced: the tasks that this Piper executes, which no trainer's step has.
    assert best["predicted"]["trainer"] == "piper"
    piper("report", folder / "best.json", "--profile", folder / "scatters.json", "--out", folder / "best.html")
    page = (folder / "best.html").read_text()
    assert "gate" in page and "gradient norm" in page


def check_bench():
    small = ask("bench", "sim", "--pp", 4, "--ep", 8, "--dp", 16)
    assert small["tasks_per_second"] > 0 and small["num_ranks"] == 64
    assert abs(small["all_ranks"]["step_seconds"] / small["one_pipeline"]["step_seconds"] - 1) < 1e-9


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_loads()
        check_disturbances(folder)
        check_traces(folder)
        check_plan(folder)
        check_scatter(folder)
        check_bench()
    print("sim_load: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
