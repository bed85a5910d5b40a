#!/usr/bin/env python3
"""`plan --what-if`, `plan --min-devices` and `compare` against `plan` and `estimate` asked one by one."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

PIPER = os.environ.get("PIPER", "build/release/piper")
MODEL = ["--model", "qwen3-30b-a3b", "--cluster", "dgx-h100"]  # estimate reads these too
PLAN = ["plan", *MODEL, "--runnable"]
# What is asked of these does not depend on how large the space is.
OF_64 = [*PLAN, "--devices", 64, "--micro-batch", 1]


def piper(*arguments, code=0):
    run = subprocess.run([PIPER, *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == code, (arguments, run.returncode, run.stderr)
    return run.stdout if code == 0 else run.stderr


def check_capacity():
    """Experts drop only where the user lets them; then no rank takes more than its capacity."""
    whole = ["plan", *MODEL, "--devices", 64, "--sequence", 4096, "--global-batch", 512, "--imbalance", 3, "--micro-batch", 1, "--json"]
    dropless, limited, tight = (json.loads(piper(*whole, *more))["strategies"][0] for more in
                                ([], ["--capacity-factor", 1.25, "--drop", "position"], ["--capacity-factor", 0.5]))
    assert "capacity_factor" not in dropless and limited["capacity_factor"] == 1.25 and limited["drop"] == "position"
    seconds = [s["predicted"]["step_seconds"] for s in (dropless, limited, tight)]
    assert seconds[0] > 1.1 * seconds[1] and seconds[1] > 1.1 * seconds[2], seconds
    # An even load stays below 1.25: all that a capacity adds is what its statistics sum.
    runnable = [*OF_64, "--pp", 1]
    even = [json.loads(piper(*runnable, "--json", *more))["strategies"][0] for more in ([], ["--capacity-factor", 1.25])]
    seconds = [s["predicted"]["step_seconds"] for s in even]
    assert abs(seconds[1] / seconds[0] - 1) < 1e-5 and even[1]["capacity_factor"] == 1.25, seconds
    # Padded, what choices are uneven costs nothing, and what is padded does.
    padded = [json.loads(piper(*runnable, "--json", "--capacity-factor", 1.25, "--pad-to-capacity", *more))["strategies"][0]
              for more in ([], ["--imbalance", 1.2])]
    assert all(s["pad_to_capacity"] for s in padded), padded
    assert padded[0]["predicted"]["step_seconds"] == padded[1]["predicted"]["step_seconds"] > 1.01 * seconds[1], padded
    for more, said in ((["--capacity-factor", 20, "--pad-to-capacity"], "128 over 8"),
                       (["--capacity-factor", 1, "--pad-to-capacity", "--all-to-all", "halo-dedup"], "halo-dedup"),
                       (["--capacity-factor", 1, "--pad-to-capacity", "--moe-schedule", "chunked"], "chunked"),
                       (["--capacity-factor", 1, "--pad-to-capacity", "--cp", 2], "share the tokens")):
        assert said in piper(*PLAN, "--devices", 64, *more, code=2), more
    assert "give --capacity-factor too" in piper(*PLAN, "--pad-to-capacity", code=2)
    assert "give both or neither" in piper(*PLAN, "--drop", "position", code=2)
    assert "0.01" in piper(*PLAN, "--capacity-factor", 0, code=2)


def check_ignored_keys():
    """--ignore reads a config.json without a key, in every command that reads one, and says so."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "config.json"
        config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "vocab_size": 100, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False}
        file.write_text(json.dumps(config))
        plain = json.loads(piper("model", file, "--json"))
        file.write_text(json.dumps({**config, "lora_rank": 8, "odd_rank": 3}))
        refused = piper("model", file, code=2).splitlines()
        assert len(refused) == 2 and all("--ignore " in line for line in refused), refused
        both = ["--ignore", "lora_rank", "--ignore", "odd_rank"]
        ignored = json.loads(piper("model", *both, file, "--json"))  # a flag takes one value: the file is no key
        assert ignored["parameters"] == plain["parameters"] and ignored["ignored_on_request"] == ["lora_rank: 8", "odd_rank: 3"], ignored
        assert "ignored as asked: odd_rank: 3" in piper("model", file, *both)
        estimate = ["estimate", "--model", file, "--cluster", "dgx-h100", "--dp", 2]
        assert "--ignore odd_rank" in piper(*estimate, "--ignore", "lora_rank", code=2)
        run = subprocess.run([PIPER, *map(str, [*estimate, *both])], capture_output=True, text=True)
        assert run.returncode == 0 and run.stderr.splitlines() == ["ignored as asked: lora_rank: 8", "ignored as asked: odd_rank: 3"], run
        assert "lora_rank" in piper("plan", "--model", file, "--cluster", "dgx-h100", "--devices", 2, "--ignore", "odd_rank", code=2)


def check_export_of_a_file():
    """`export FILE` knows the model by its name in the plan; one that is not built in has to be named."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "s.json"
        piper("plan", *MODEL, "--devices", 16, "--schedule", "1f1b", "--trainer", "megatron-core", "--out", file)
        by_name = piper("export", "--to", "megatron", file)
        assert "--expert-model-parallel-size" in by_name
        assert by_name == piper("export", "--to", "megatron", "--strategy", file, "--model", "qwen3-30b-a3b")
        assert "one of them" in piper("export", "--to", "megatron", "--strategy", file, file, code=2)
        file.write_text(json.dumps({**json.loads(file.read_text()), "model": "ours"}))
        assert "its model 'ours' is no built-in; give --model" in piper("export", "--to", "megatron", file, code=2)
        assert "--model is missing" in piper("export", "--to", "megatron", code=2)


def check_export_of_what_cannot_run():
    """A plan that the trainer cannot run is a wrong question: exit code 2, and nothing on standard output but --json's answer."""
    asked = ["export", "--to", "torchtitan", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--ep", 8, "--dp", 8, "--capacity-factor", 1.25]
    said = piper(*asked, code=2)
    assert said and all(line.startswith("piper: ") for line in said.splitlines()), said
    run = subprocess.run([PIPER, *map(str, asked), "--json"], capture_output=True, text=True)
    assert run.returncode == 2 and json.loads(run.stdout)["cannot"], run


def check_labels_of_memory():
    """A component holds what its name says under every ZeRO: all that one divides is the optimizer, and what it divided is as much."""
    memory = []
    for zero in range(4):
        asked = ["estimate", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--ep", 8, "--dp", 8, "--zero", zero, "--json"]
        memory.append(json.loads(piper(*asked))["predicted"]["memory"])
    states, optimizer = ([m[key] for m in memory] for key in ("weights_and_gradients_bytes", "optimizer_bytes"))
    assert states[0] == states[1] > states[2] > states[3], states
    assert optimizer[0] > optimizer[1] == optimizer[2] == optimizer[3], optimizer


def check_schedule_of_mixtures():
    """A described machine is asked like a measured one: any schedule that this Piper runs, and no other trainer's."""
    ask = ["plan", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--devices", 16, "--trainer", "piper"]
    kept = json.loads(piper(*ask, "--tp", 2, "--moe-schedule", "parm-s1", "--json"))["strategies"]
    assert kept and all(s["moe_schedule"] == "parm-s1" and not s.get("sequence_parallel") for s in kept), kept
    open_mfu, plain_mfu = (json.loads(piper(*ask, *more, "--json"))["strategies"][0]["predicted"]["mfu"] for more in ([], ["--moe-schedule", "plain"]))
    assert open_mfu >= plain_mfu, (open_mfu, plain_mfu)
    refused = piper(*ask[:-1], "megatron-core", "--moe-schedule", "chunked", code=2)
    assert "trainer megatron-core runs mixture layers in one piece" in refused and refused.count("\n") == 1, refused


def check_help_offers_what_works():
    """`plan` tries no strategy with slots for copies of experts, so that its help offers no policy that fills them."""
    policies = {command: next(line for line in piper(command, "--help").splitlines() if "--rebalance TEXT" in line) for command in ("plan", "sim")}
    assert "shadow" in policies["sim"] and "shadow" not in policies["plan"] and "threshold:X" in policies["plan"], policies


def check_memory_is_said():
    """A strategy that does not fit is priced all the same, and said not to fit, whoever prices it."""
    axes = [*MODEL, "--ep", 8, "--dp", 8]
    for command in ("estimate", "sim"):
        for trainer in ([], ["--trainer", "megatron"]):
            large = json.loads(piper(command, *axes, *trainer, "--json"))
            assert large["fits"] is False and large["device_memory_bytes"] == 80 * 2**30, (command, trainer)
            said = [line for line in piper(command, *axes, *trainer).splitlines() if line.startswith("does not fit")]
            assert len(said) == 1 and "of the 80.00 GiB of a device on stage 0" in said[0], said
            small = [*MODEL, "--pp", 4, "--ep", 16, "--dp", 16, "--recompute", "full", *trainer]
            assert json.loads(piper(command, *small, "--json"))["fits"] is True, (command, trainer)
            assert "does not fit" not in piper(command, *small)


def check_threads():
    """However many threads search, the answer is the same; their number is one from 1."""
    whole = [*MODEL, "--devices", 16, "--global-batch", 64, "--cp", 1, "--json"]
    answers = []
    for threads in ([], ["--threads", 1], ["--threads", 3]):
        answer = json.loads(piper("plan", *whole, *threads))
        assert answer.pop("plan_seconds") > 0
        answers.append(answer)
    assert answers[0] == answers[1] == answers[2]
    for wrong in (0, -1, "many", 1.5):
        assert "--threads" in piper("plan", *whole, "--threads", wrong, code=2)
    assert "--threads" in piper("map", "--models", MODEL[1], "--cluster", MODEL[3], "--devices", 8, "--threads", 0, code=2)


def check_rows_are_whole():
    """Piped rows are not cut, and $COLUMNS cuts them; the count of micro-batches is an axis of the whole search."""
    whole = ["plan", *MODEL, "--devices", 64, "--num-micro-batches", 8, "--tp", 2, "--top", 5]
    assert {s["num_micro_batches"] for s in json.loads(piper(*whole, "--json"))["strategies"]} == {8}
    assert "…" not in piper(*whole)
    narrow = subprocess.run([PIPER, *map(str, whole)], capture_output=True, text=True, env={**os.environ, "COLUMNS": "90"}).stdout
    rows = [line for line in narrow.splitlines() if line[:2] in ("1 ", "2 ")]
    assert len(rows) == 2 and max(map(len, rows)) <= 90, rows
    # In place of the ranking, without --top: the best of each kind, and what all rows share once.
    choice = piper(*whole[:-2], "--ep", 16)
    assert "against the best" in choice and "\nall: " in choice, choice
    kinds = json.loads(piper(*whole[:-2], "--json"))["choices"]
    assert kinds[0]["what"].startswith(("fastest", "best: of those within 1 %")) and len({json.dumps(c["mesh"]) for c in kinds}) > 2
    free = json.loads(piper(*whole, "--memory-margin", 0.5, "--json"))
    assert free["memory_limit_bytes"] == 0.5 * 80 * 2**30 and all(s["predicted"]["peak_bytes"] <= 0.5 * 80 * 2**30 for s in free["strategies"])


def check_whole_what_if():
    """Over every axis too, the first row is plain `plan`, and the changed machine's is `plan` on it."""
    whole = ["plan", *MODEL, "--devices", 16, "--sequence", 4096, "--global-batch", 64, "--cp", 1, "--json"]
    plain = json.loads(piper(*whole))
    asked = json.loads(piper(*whole, "--what-if", "memory=x2", "--explain"))
    here, roomy = asked["what_if"]
    assert here["best"] == plain["strategies"][0] == asked["strategies"][0] and here["speedup"] == 1
    assert roomy["memory_limit_bytes"] == 2 * here["memory_limit_bytes"] and roomy["speedup"] >= 1
    assert roomy["best"]["mesh"].get("cp", 1) == 1 and asked["families"]
    fixed = json.loads(piper(*whole, "--imbalance", 2, "--zero", 1, "--what-if", "compute=x2"))["what_if"]
    assert fixed[0]["best"] == json.loads(piper(*whole, "--imbalance", 2, "--zero", 1))["strategies"][0]
    assert "allowed: WHAT=HOW" in piper(*whole, "--what-if", "nic=x2", code=2)


def check_whole_min_devices(least_runnable):
    """Over every axis: no smaller number takes a strategy, and the best there is plain `plan`'s."""
    whole = ["plan", *MODEL, "--sequence", 4096, "--cp", 1, "--json"]
    fewest = json.loads(piper(*whole, "--min-devices"))
    least = fewest["min_devices"]
    for count in fewest["counts"]:
        assert count["fits"] == (count["num_devices"] >= least) == ("best" in count), count["num_devices"]
        assert count["fits"] == (count["smallest_peak_bytes"] <= fewest["memory_limit_bytes"])
    best = next(count["best"] for count in fewest["counts"] if count["num_devices"] == least)
    assert best == json.loads(piper(*whole, "--devices", least))["strategies"][0]
    assert least <= least_runnable
    piper(*whole, "--devices", least - 1, code=1)


def main():
    os.environ.pop("COLUMNS", None)
    check_capacity()
    check_ignored_keys()
    check_export_of_a_file()
    check_export_of_what_cannot_run()
    check_labels_of_memory()
    check_schedule_of_mixtures()
    check_memory_is_said()
    check_help_offers_what_works()
    check_threads()
    check_rows_are_whole()
    check_whole_what_if()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        cluster = json.loads(piper("cluster", "dgx-h100", "--json"))
        best = json.loads(piper(*OF_64, "--json"))["strategies"][0]
        asked = json.loads(piper(*OF_64, "--what-if", "memory=x2", "--what-if", "device=dgx-a100", "--json"))
        here, roomy, older = asked["what_if"]
        assert here["best"]["predicted"]["step_seconds"] == best["predicted"]["step_seconds"] and here["speedup"] == 1
        assert roomy["memory_limit_bytes"] == 2 * here["memory_limit_bytes"] and roomy["speedup"] >= 1
        assert older["speedup"] < 1, "an A100 beats an H100"
        # The machine written out by hand gives the same plan.
        changed = {**cluster, "name": "larger", "memory_bytes": 2 * cluster["memory_bytes"]}
        (folder / "larger.json").write_text(json.dumps(changed))
        by_hand = json.loads(piper("plan", "--runnable", "--model", "qwen3-30b-a3b", "--cluster", folder / "larger.json", *OF_64[len(PLAN):], "--json"))
        assert by_hand["strategies"][0]["predicted"]["step_seconds"] == roomy["best"]["predicted"]["step_seconds"]

        fewest = json.loads(piper(*PLAN, "--sequence", 4096, "--min-devices", "--json"))
        least = fewest["min_devices"]
        check_whole_min_devices(least)
        assert json.loads(piper(*PLAN, "--devices", least, "--json"))["strategies"]
        for count in fewest["counts"]:
            assert count["fits"] == (count["num_devices"] >= least), count["num_devices"]
        assert "leave out --devices" in piper(*PLAN, "--min-devices", "--devices", 8, code=2)
        for question in (["--min-devices"], ["--what-if", "compute=x2", "--devices", 64]):
            for search in (PLAN, ["plan", *MODEL]):
                refused = piper(*search, *question, "--pp", 1000, code=2)
                assert refused.startswith("piper: --pp 1000"), refused  # no progress before

        piper(*OF_64, "--out", folder / "a.json")
        piper(*OF_64, "--pp", 1, "--out", folder / "b.json")
        compared = json.loads(piper("compare", folder / "a.json", folder / "b.json", "--json"))
        seconds = {}
        for side in "ab":
            alone = json.loads(piper("estimate", *MODEL, "--strategy", folder / f"{side}.json", "--json"))["predicted"]
            planned = json.loads((folder / f"{side}.json").read_text())["predicted"]
            seconds[side] = alone["step_seconds"]
            for figure in ("step_seconds", "closed_form_seconds", "mfu", "peak_bytes", "tokens_per_second"):
                assert planned[figure] == alone[figure] == compared[side]["predicted"][figure], (side, figure)
        assert abs(compared["speedup"] - seconds["a"] / seconds["b"]) < 1e-12
        assert json.loads(piper("compare", folder / "a.json", folder / "a.json", "--json"))["speedup"] == 1
        # Another machine is other work, and said above the table.
        piper(*PLAN, "--devices", 32, "--micro-batch", 1, "--out", folder / "half.json")
        assert piper("compare", folder / "a.json", folder / "half.json").startswith("more than the strategy differs: ranks 64 and 32;")
        assert "more than the strategy" not in piper("compare", folder / "a.json", folder / "b.json")
        # A plan that was made from a config.json names its model otherwise; the count of parameters says which built-in it is.
        plan = json.loads((folder / "a.json").read_text())
        (folder / "own.json").write_text(json.dumps({**plan, "model": "Qwen3-30B-A3B-Base"}))
        refused = piper("compare", folder / "own.json", folder / "own.json", code=2)
        assert "give --model: qwen3-30b-a3b" in refused and len(refused.splitlines()) == 1, refused
        plan["predicted"]["trainer"] = "ours"  # who was to run it is part of the plan, and not everybody has the file
        (folder / "theirs.json").write_text(json.dumps(plan))
        for command in ("estimate", "sim"):
            assert "the trainer 'ours', which is not built in; give --trainer" in piper(command, *MODEL, "--strategy", folder / "theirs.json", code=2)
            assert piper(command, *MODEL, "--strategy", folder / "theirs.json", "--trainer", "piper")
            assert piper(command, *MODEL, "--strategy", folder / "theirs.json", "--stack", "piper")  # as it was called before
        plan["predicted"]["stack"] = plan["predicted"].pop("trainer")  # a file that was written then
        (folder / "theirs.json").write_text(json.dumps(plan))
        assert "the trainer 'ours', which" in piper("estimate", *MODEL, "--strategy", folder / "theirs.json", code=2)
        sim = ["sim", "--strategy", folder / "own.json", "--json"]
        assert json.loads(piper(*sim, "--model", "qwen3-30b-a3b"))["step_seconds"] > 0
        assert "is 'Qwen3-30B-A3B-Base', but --model is 'mixtral-8x7b'" in piper(*sim, "--model", "mixtral-8x7b", code=2)
        assert "no such file" in piper("compare", folder / "a.json", folder / "c.json", code=2)
    print("planner_questions: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
