#!/usr/bin/env python3
"""Wrong input: exit code 2, one clear line a problem on standard error, nothing on standard output, never a stack trace, within a
second. What is said of a wrong subcommand, flag, key, file and unit is golden text (--write renews it)."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from switches import skip_case

PIPER = os.environ.get("PIPER", "build/release/piper")
GOLDEN = pathlib.Path(__file__).parent / "golden" / "bad_input.json"
GOLDEN_CASES = ("unknown command", "unknown flag", "strategy with an unknown key", "no such strategy file", "no such config",
                "unknown unit", "unit of another kind")
CPU_SECONDS = 1  # of the program: a busy machine changes nothing
MODEL = {"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 128, "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 256, "rms_norm_eps": 1e-5,
         "max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu"}
DENSE = {key: value for key, value in MODEL.items() if "expert" not in key} | {"model_type": "llama"}
STRATEGY = {"mesh": {"pp": 1, "ep": 2, "dp": 2}, "layers_per_stage": [2], "schedule": "1f1b", "recompute": "none", "precision": "fp32",
            "sequence": 64, "global_batch_sequences": 4, "micro_batch_sequences": 1, "num_micro_batches": 2}


def changed(base, **more):
    return json.dumps({**base, **more})


def cases(folder):
    """(name, arguments, what each line of the message must hold); file contents are written to `folder`."""
    def file(name, text):
        path = folder / name
        path.write_text(text)
        return str(path)

    def model(name, text, *expected):
        return name, ["model", file(f"{name}.json", text)], list(expected)

    yield "bytes of nothing", ["bench", "flows", "--bytes", "0"], ["--bytes: is 0; allowed: a number greater than 0"]
    yield "unknown command", ["modle", "x"], ["unknown command 'modle'", "did you mean 'model'"]
    yield "unknown flag", ["plan", "--modle", "x"], ["'--modle'", "did you mean '--model'"]
    yield "unknown flag of a command's command", ["bench", "alltoall", "--sizes", "3"], ["'--sizes'", "(see piper bench alltoall --help)"]
    yield "no flag at all", ["plan"], ["--model and --cluster are required (see piper plan --help)"]
    yield "help as a word", ["help", "plan"], ["unknown argument 'help'; did you mean 'piper plan --help'?"]
    yield "help of nothing", ["help"], ["did you mean 'piper --help'?"]
    yield "version as a word", ["version"], ["did you mean 'piper --version'?"]
    yield "unknown unit", ["bench", "alltoall", "--pair-bytes", "4Q"], ["--pair-bytes", "4Q"]
    yield "unit of another kind", ["bench", "alltoall", "--pair-bytes", "4ms"], ["--pair-bytes", "4ms"]
    yield "no such config", ["model", str(folder / "none" / "config.json")], ["config.json"]
    yield "unknown model", ["model", "mixtral-8x7"], ["mixtral-8x7", "did you mean 'mixtral-8x7b'"]
    yield "unknown cluster", ["cluster", "frontear"], ["frontear", "did you mean 'frontier'"]
    yield "mixture layer without a model", ["moe", "--cluster", "a800"], ["--model is required"]
    yield "a word that moved", ["validate", "--statements"], ["validate --statements moved: run piper-studies statements"]
    yield "groups that do not nest", ["moe", "--model", "mixtral-8x7b", "--cluster", "a800", "--tp", "3", "--etp", "2"],\
        ["--tp is 3 and --etp 2; allowed: one that divides the other"]
    yield "mixture layer of a dense model", ["moe", "--model", file("dense.json", json.dumps(DENSE)), "--cluster", "a800"], ["has no mixture layer"]
    yield "fraction for a count", ["train", "--model", "piper-10m", "--steps", "3.7"], ["--steps", "3.7"]
    yield "negative count", ["train", "--model", "piper-10m", "--steps", "-1"], ["--steps", "-1"]
    yield model("zero experts", changed(MODEL, num_local_experts=0), "num_local_experts", "0")
    yield model("more chosen than experts", changed(MODEL, num_experts_per_tok=5), "num_experts_per_tok", "5", "4")
    yield model("negative hidden", changed(MODEL, hidden_size=-1), "hidden_size", "-1")
    yield model("1e400", json.dumps(MODEL).replace("10000.0", "1e400"), "1e400")
    yield model("2^63", json.dumps(MODEL).replace('"hidden_size": 64', '"hidden_size": 9223372036854775808'), "9223372036854775808")
    yield model("fraction of a layer", changed(MODEL, num_hidden_layers=3.7), "num_hidden_layers", "3.7")
    yield model("text for a number", changed(MODEL, vocab_size="many"), "vocab_size", "many")
    yield model("two problems at once", changed(MODEL, vocab_size=-5, num_attention_heads=0), "vocab_size", "num_attention_heads")
    yield model("an architecture that is not there", changed(MODEL, model_type="nemotron_h", hybrid_override_pattern="M-", vocab_size=-1),
                "'model_type' is 'nemotron_h', which Piper cannot describe: state-space (Mamba) layers")
    yield model("an unknown key of shapes", changed(MODEL, lora_rank=8), "--ignore lora_rank reads the config without it")
    yield model("infinity where it matters", changed(MODEL, head_dim=float("inf")), "'head_dim' is Infinity; allowed: an integer from 1 to 65536")
    yield model("duplicate key", json.dumps(MODEL)[:-1] + ', "hidden_size": 32}', "hidden_size", "twice")
    yield model("empty file", "", "empty")
    yield model("depth", "[" * 1000000, "nested deeper")
    yield model("a list", "[1, 2]", "object")
    strategies = {
        "strategy with an unknown key": (changed(STRATEGY, schedul="1f1b"), ["schedul", "did you mean 'schedule'"]),
        "degrees that do not divide": (changed(STRATEGY, mesh={"pp": 1, "ep": 3, "dp": 2}), ["ep", "3"]),
        "layers that do not add up": (changed(STRATEGY, layers_per_stage=[3]), ["layers_per_stage", "3"]),
        "a batch that does not multiply": (changed(STRATEGY, num_micro_batches=3), ["num_micro_batches", "3"]),
        "a capacity of nothing": (changed(STRATEGY, capacity_factor=0, drop="position"), ["capacity_factor", "0", "0.01 to 1000"]),
        "an unknown way to drop": (changed(STRATEGY, capacity_factor=1.25, drop="probs"), ["drop", "probs", "probability, position"]),
        "unknown schedule": (changed(STRATEGY, schedule="zero"), ["schedule", "zero", "gpipe"]),
    }
    good = file("good-model.json", json.dumps(MODEL))
    for name, (text, expected) in strategies.items():
        yield name, ["estimate", "--model", good, "--cluster", "dgx-h100", "--strategy", file(f"{name}.json", text)], expected
    yield "no such strategy file", ["estimate", "--model", good, "--cluster", "dgx-h100", "--strategy", str(folder / "none.json")], ["none.json"]
    limited = ["estimate", "--model", good, "--cluster", "dgx-h100"]
    yield "a drop without a capacity", [*limited, "--drop", "position"], ["--drop", "position", "--capacity-factor"]
    yield "a capacity factor that is no number", [*limited, "--capacity-factor", "nan"], ["--capacity-factor", "nan"]
    yield "padding without a capacity", [*limited, "--pad-to-capacity"], ["--pad-to-capacity", "--capacity-factor"]
    yield "a misspelt drop", [*limited, "--capacity-factor", "1", "--drop", "positon"], ["--drop", "did you mean 'position'"]
    yield "a negative z-loss", ["train", "--model", good, "--z-loss", "-1"], ["--z-loss", "-1"]
    dense = file("dense.json", json.dumps(DENSE))
    yield "a folder for nothing", ["train", "--model", good, "--cluster", "rtx4090x8", "--precision", "fp32", "--host-folder", "/"], ["--host-folder", "--offload optimizer"]
    yield "a z-loss without routers", ["train", "--model", dense, "--cluster", "dgx-h100", "--z-loss", "0.1"], ["--z-loss", "dense"]
    yield "a capacity without experts", ["estimate", "--model", dense, "--cluster", "dgx-h100", "--capacity-factor", "1"], ["--capacity-factor", "dense"]
    on_h100 = ["estimate", "--model", good, "--cluster", "dgx-h100"]
    yield "too many modules", [*on_h100, "--mtp-depth", "5"], ["--mtp-depth", "5", "0 to 4"]
    yield "more modules than tokens", [*on_h100, "--mtp-depth", "2", "--sequence", "2"], ["--mtp-depth", "2", "less than the 2 tokens"]
    place = ["place", "--model", good, "--cluster", "dgx-h100", "--ep", "2"]
    yield "a host list that does not end", [*place, "--nodes", "n[1-"], ["--nodes", "n[1-", "not closed"]
    yield "a topology with a circle", [*place, "--nodes", "n1", "--topology", file("topology.conf", "SwitchName=a Switches=a")], ["topology.conf:1", "circle"]
    yield "neither nodes nor free ones", place, ["--nodes is missing", "--free"]
    yield "zero bandwidth", ["cluster", file("zero.json", zero_bandwidth())], ["bandwidth"]
    whole = ["plan", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--devices", "64", "--trainer", "piper"]
    yield "a precision that is not trained", [*whole, "--runnable", "--what-if", "nics=x2", "--precision", "fp8"], ["--precision is fp8", "--runnable", "bf16"]
    for flag, value, allowed, question in (("--tp", "2", "--tp 1", ["--paper"]), ("--cp", "2", "--cp 1", ["--paper"]),
                                           ("--etp", "2", "--etp 1", ["--paper"]), ("--offload", "activations", "--offload none", ["--paper", "--load", "zipf:1"]),
                                           ("--offload", "optimizer", "--offload none", ["--paper", "--what-if", "memory=x2"])):
        yield f"{flag} {value} beside {question[0]}", [*whole, flag, value, *question], [f"{flag} {value} with {question[0]}", "allowed", allowed]
    cpus = json.loads(subprocess.run([PIPER, "cluster", "dgx-h100", "--json"], capture_output=True, text=True, check=True).stdout)
    cpus = ["plan", "--model", good, "--cluster", file("cpus.json", json.dumps({**cpus, "kind": "cpu", "name": "cpus"})), "--devices", "8"]
    yield "another trainer on CPUs", [*cpus, "--trainer", "megatron"], ["--trainer is megatron", "cpus", "allowed there: piper"]
    yield "states that are not trained, on CPUs", [*cpus, "--precision", "fp8"], ["fp8"]
    for fixed, *expected in (("--schedule zb-v --pp 1", "--schedule zb-v with --pp 1", "--pp 2"), ("--schedule interleaved --vpp 1", "--vpp 2"),
                             ("--micro-batch 0", "--micro-batch is 0"), ("--pp -1", "--pp is -1"), ("--micro-batch 7", "--micro-batch 4 or 8"),
                             ("--pp 4 --ep 8 --dp 16 --tp 8", "--tp 8 with --dp 16", "--dp 2")):
        yield f"plan {fixed}", [*whole, *fixed.split()], expected
    yield "more chunks than layers", ["estimate", "--model", "olmoe-1b-7b", "--cluster", "dgx-h100", "--pp", "4", "--vpp", "5", "--schedule", "interleaved"],\
        ["--pp x --vpp is 4 x 5; allowed: a product of at most 16, the layers of olmoe-1b-7b"]
    yield "copies of experts in a plan", [*whole, "--load", "zipf:0.3", "--samples", "60", "--rebalance", "shadow"],\
        ["--rebalance is shadow: plan tries no strategy with slots for copies", "allowed: off, threshold:X, price, random:F"]
    yield "more devices than there are", ["plan", "--model", good, "--cluster", "rtx4090x8", "--devices", "4096"], ["4096"]


def zero_bandwidth():
    described = json.loads(subprocess.run([PIPER, "cluster", "rtx4090x8", "--json"], capture_output=True, text=True, check=True).stdout)
    def walk(node):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if key == "bandwidth_bytes_per_second":
                node[key] = 0
            elif isinstance(value, (dict, list)):
                walk(value)
    walk(described)
    return json.dumps(described)


SAID = {}  # by case


def golden_problems(folder, write):
    """Cases whose text is not the golden one; with `write`, it becomes that."""
    said = {name: SAID[name].replace(str(folder), "DIR") for name in GOLDEN_CASES}
    if write:
        GOLDEN.write_text(json.dumps(said, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    return [f"bad_input: {name}: says {text!r}, golden is {golden.get(name)!r}" for name, text in said.items() if golden.get(name) != text]


def check(name, arguments, expected, code=2):
    before = os.times()
    run = subprocess.run([PIPER, *arguments], capture_output=True, text=True, timeout=60)
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    problems = []
    if code == 2 and arguments[0] != "train" and seconds > CPU_SECONDS:
        problems.append(f"{seconds:.2f} s of CPU time; at most {CPU_SECONDS}")
    SAID[name] = run.stderr
    if run.returncode != code:
        problems.append(f"exit code {run.returncode}, not {code}")
    if run.stdout:
        problems.append(f"standard output: {run.stdout[:200]!r}")
    for piece in expected:
        if piece not in run.stderr:
            problems.append(f"'{piece}' is not in the message")
    if any(not line.startswith("piper: ") for line in run.stderr.splitlines()) or "internal error" in run.stderr:
        problems.append("a line that is no message")
    for problem in problems:
        print(f"bad_input: {name}: {problem}\n  stderr: {run.stderr[:500]}")
    return not problems


def checkpoints(folder):
    """A checkpoint of another model; one asked for but absent."""
    run, base = folder / "run", ["train", "--cluster", "rtx4090x8", "--precision", "fp32", "--sequence", "32", "--run"]
    text = folder / "text.txt"
    text.write_text("the quick brown fox " * 100)
    model = folder / "a.json"
    model.write_text(json.dumps(MODEL))
    other = folder / "b.json"
    other.write_text(changed(MODEL, intermediate_size=96))
    common = [str(run), "--data", str(text), "--steps", "4"]
    yield check("resume without a checkpoint", [*base, *common, "--model", str(model), "--dp", "2", "--resume"], ["checkpoint"])
    subprocess.run([PIPER, *base, *common, "--model", str(model), "--dp", "2", "--stop-after", "2", "--checkpoint-every", "2", "--json"],
                   check=True, capture_output=True)
    yield check("checkpoint of another model", [*base, *common, "--model", str(other), "--dp", "2", "--resume"], ["model"])
    yield check("a tokenizer that is not built in", ["data", "build", "--input", str(text), "--out", str(folder / "d"), "--tokenizer", "t.json"],
                ["--tokenizer", "t.json", "allowed: bytes"])
    yield check("no input to build from", ["data", "build", "--input", str(folder / "absent"), "--out", str(folder / "d")], ["absent", "no such file or folder"])
    yield check("a weight decay that is no number", [*base, *common, "--model", str(model), "--weight-decay", "nan"], ["--weight-decay", "nan"])
    yield check("a negative seed", [*base, *common, "--model", str(model), "--seed", "-1"], ["--seed", "-1"])
    yield check("a model that this machine cannot hold", ["train", "--model", "deepseek-v3", "--cluster", "rtx4090x8", "--precision", "fp32",
                "--steps", "1", "--sequence", "32", "--global-batch", "1", "--run", str(folder / "huge"), "--data", str(text)], ["available"])
    yield check("unknown word after data", ["data", "bild"], ["unknown command 'bild'", "did you mean 'build'"])
    yield check("a run in the way", [*base, *common, "--model", str(model), "--dp", "2"], ["--resume", "--fresh"])


def main():
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root)
        can_train = "--learning-rate" in subprocess.run([PIPER, "train", "--help"], capture_output=True, text=True).stdout
        results = [check(*case) for case in cases(folder) if can_train or case[1][0] != "train"]
        for problem in golden_problems(folder, "--write" in sys.argv):
            print(problem)
            results.append(False)
        if can_train:
            results += list(checkpoints(folder))
        else:
            skip_case("cases of training", "this program cannot train")
    print(f"bad_input: {sum(results)} of {len(results)} cases")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
