#!/usr/bin/env python3
"""Every `piper` command that README and docs/cli.md name, run on the smallest world: one rank, one expert, one layer, one micro-batch, one
token where it takes them. A command that they have and this file has not, or the other way round, is a failure; so is a script that README
names and the tree has not."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from switches import skip, skip_case

ROOT = pathlib.Path(__file__).resolve().parent.parent
PIPER = os.environ.get("PIPER", "build/release/piper")
# One layer of one expert.
MODEL = {"model_type": "mixtral", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
         "intermediate_size": 8, "num_local_experts": 1, "num_experts_per_tok": 1, "vocab_size": 256, "rms_norm_eps": 1e-5,
         "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu"}
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
HERE = ["--model", "model.json", "--cluster", "here.json"]
# One rank, one micro-batch of one sequence.
AXES = ["--pp", "1", "--ep", "1", "--dp", "1", "--micro-batch", "1", "--num-micro-batches", "1"]
ONE_RANK = [*HERE, *AXES]
TOKEN = ["--sequence", "1", "--global-batch", "1"]
STEPS = ["--data", "text.txt", "--steps", "3"]
PIPELINE = ["--rounds", "1", "--rows", "1", "--hidden", "8", "--linear-layers", "4", "--micro-batches", "1", "--steps", "1"]
MPIRUN = shutil.which("mpirun.openmpi")

PAGES = ("docs/cli.md", "docs/studies.md", "README.md")
# By the text of a page: small forms, each a list of arguments. They run in this order: later ones read what earlier ones wrote.
SMALL = {
    "piper profile --out here.json": [["profile", "--ranks", "1", "--budget-seconds", "1", "--out", "here.json"]],
    "piper model mixtral-8x7b": [["model", "mixtral-8x7b"], ["model", "--list"]],
    "piper model config.json": [["model", "model.json"], ["model", "model.json", "--json"]],
    "piper cluster frontier": [["cluster", "frontier"], ["cluster", "here.json"], ["cluster", "--list"]],
    "piper trainer --list": [["trainer", "--list"], ["trainer", "megatron"], ["trainer", "--list", "--json"]],
    "piper plan --model deepseek-v3 --cluster dgx-h100 --devices 2048": [
        ["plan", "--model", "model.json", "--cluster", "dgx-h100", "--devices", "1", "--global-batch", "1", "--explain", "--out", "plan.json"],
        ["plan", *HERE, "--devices", "1", *TOKEN],
        ["plan", *HERE, "--devices", "1", *TOKEN, "--runnable", "--out", "s.json"],
        ["plan", "--model", "model.json", "--cluster", "dgx-h100", "--min-devices"],
        ["plan", "--model", "model.json", "--cluster", "dgx-h100", "--devices", "1", "--what-if", "nics=x2"]],
    "piper validate [runs.json]": [["validate"]],
    "piper estimate --strategy s.json --model M --cluster C": [
        ["estimate", "--strategy", "s.json", *HERE], ["estimate", *ONE_RANK, *TOKEN], ["estimate", *ONE_RANK, *TOKEN, "--load", "zipf:1"]],
    "piper map --models mixtral-8x7b,qwen3-30b-a3b --cluster dgx-h100 --devices 8,64,512 --out map.html": [
        ["map", "--models", "model.json", "--cluster", "dgx-h100", "--devices", "1", "--out", "map.html"]],
    "piper compare a.json b.json": [["compare", "s.json", "s.json", *HERE]],
    "piper exchange --cluster frontier --nodes 16 --bytes 64,65536": [
        ["exchange", "--cluster", "frontier", "--nodes", "1", "--bytes", "64"]],
    "piper place --strategy s.json --model M --nodes \"$SLURM_JOB_NODELIST\" --topology topology.conf": [
        ["place", "--strategy", "s.json", "--model", "model.json", "--cluster", "dgx-h100", "--nodes", "n1", "--topology", "topology.conf",
         "--ranks-per-node", "1"]],
    "piper export --to megatron s.json": [
        ["export", "--to", "megatron", "s.json", "--model", "model.json"],
        *(["export", "--to", to, "--model", "model.json", "--cluster", "dgx-h100", *AXES] for to in ("deepspeed", "torchtitan", "nemo"))],
    "piper sim --strategy s.json --model M --cluster C --trace t.json": [
        ["sim", "--strategy", "s.json", *HERE, "--trace", "t.json"], ["sim", *ONE_RANK, *TOKEN, "--all-ranks", "--html", "t.html"],
        ["sim", *ONE_RANK, *TOKEN, "--load", "zipf:1.2", "--jitter", "0.05"]],
    "piper train --model piper-10m --strategy s.json --run runs/a": [
        # Without a cluster: profiled as it starts.
        ["train", "--model", "piper-10m", "--dp", "1", "--data", "text.txt", "--sequence", "16", "--global-batch", "1", "--steps", "1", "--run", "runs/plain"],
        ["train", *HERE, "--strategy", "s.json", *STEPS, "--run", "runs/a", "--checkpoint-every", "2", "--export"],
        ["train", *ONE_RANK, *TOKEN, *STEPS, "--run", "runs/b", "--validation", "0.1", "--validate-every", "1", "--speed-check"],
        # Nothing is known of the precision: a note, and no prediction.
        ["train", *ONE_RANK, *TOKEN, *STEPS, "--run", "runs/c", "--precision", "fp64"],
        ["train", *ONE_RANK, "--mtp-depth", "1", "--sequence", "2", "--global-batch", "1", *STEPS, "--run", "runs/d", "--capacity-factor", "1",
         "--recompute", "full", "--schedule", "gpipe", "--all-to-all", "halo"]],
    "piper launch -n 4 train ...": [
        ["launch", "-n", "1", "train", *ONE_RANK, *TOKEN, *STEPS, "--run", "runs/e"],
        ["launch", "-n", "1", "train", *ONE_RANK, *TOKEN, *STEPS, "--run", "runs/f", "--checkpoint-every", "1"]],
    "piper checkpoint list runs/a": [["checkpoint", "list", "runs/a"], ["checkpoint", "list", "runs/f", "--json"]],
    "piper checkpoint verify runs/a": [["checkpoint", "verify", "runs/a"], ["checkpoint", "verify", "runs/f", "--json"]],
    "piper checkpoint export runs/a --out weights": [["checkpoint", "export", "runs/a", "--out", "weights"],
                                                     ["checkpoint", "export", "runs/f", "--out", "weights-f", "--json"]],
    "piper eval --weights DIR --data FILE --sequence 256": [["eval", "--weights", "runs/a/weights", "--data", "text.txt", "--sequence", "1", "--windows", "2"]],
    "piper eval --weights DIR --data FILE --sequence 256 --tp 2 --ep 2": [
        ["eval", "--weights", "runs/a/weights", "--data", "text.txt", "--sequence", "1", "--windows", "2", "--dp", "2", "--zero", "3"]],
    "piper data build --input a.jsonl --out PREFIX": [["data", "build", "--input", "a.jsonl", "--out", "d", "--jsonl-key", "text"]],
    "piper data show PREFIX": [["data", "show", "d"], ["train", *ONE_RANK, *TOKEN, "--data", "d", "--steps", "1", "--run", "runs/g"]],
    "piper report runs/a": [["report", f"runs/{run}"] for run in "abcdefg"],
    "piper report here.json": [["report", "here.json"]],
    "piper report plan.json": [["report", "plan.json"], ["report", "s.json"]],
    "piper bench dedup": [["bench", "dedup", "--tokens", "1", "--row-bytes", "8", "--experts", "1", "--top-k", "1", "--ranks", "1", "--seconds", "1"]],
    "piper bench alltoall": [["bench", "alltoall", "--ranks", "1", "--min-bytes", "64", "--max-bytes", "64", "--seconds", "1"]],
    "piper bench moe": [["bench", "moe", "--tokens", "1", "--experts", "1", "--top-k", "1", "--hidden", "8", "--ffn", "8", "--rounds", "1"]],
    "piper bench passes": [["bench", "passes", "--tokens", "1", "--hidden", "8", "--ffn", "8", "--top-k", "1", "--vocabulary", "8", "--rounds", "1"]],
    "piper bench pipeline": [["bench", "pipeline", "--ranks", "1", *PIPELINE]],
    "piper bench sim": [["bench", "sim", *ONE_RANK, *TOKEN]],
    # Searches 2,048 devices for half a minute, whatever is asked; `plan` above is the same search.
    "piper bench plan": [["bench", "plan", "--help"]],
    "piper signature": [["signature"]],
    "piper launch -n 2 bench pipeline": [["launch", "-n", "1", "bench", "pipeline", *PIPELINE]],
    "mpirun -n 2 piper bench pipeline": [["mpirun", "bench", "pipeline", *PIPELINE]],
    "piper launch -n 2 bench moe --tokens 512 --experts 4": [
        ["launch", "-n", "1", "bench", "moe", "--tokens", "1", "--experts", "1", "--top-k", "1", "--rounds", "1"]],
    "piper migrate --model mixtral-8x7b --cluster dgx-h100": [["migrate", "--model", "mixtral-8x7b", "--cluster", "dgx-h100"]],
    "piper moe --model mixtral-8x7b --cluster a800 --tp 8 --etp 8 --ep 2": [
        ["moe", "--model", "mixtral-8x7b", "--cluster", "a800", "--tp", "8", "--etp", "8", "--ep", "2", "--sequence", "8", "--precision", "fp32"]],
    "piper-studies statements parm": [["piper-studies", "statements", "monta"]],
    "piper-studies statements": [["piper-studies", "statements", "hybridep"]],
    "piper-studies phases": [["piper-studies", "phases"]],
    "piper-studies estimate --strategy s.json --model M --cluster C": [["piper-studies", "estimate", "--strategy", "s.json", *HERE]],
    "piper-studies moe --model mixtral-8x7b --cluster a800 --tp 8 --etp 8 --ep 2": [
        ["piper-studies", "moe", "--model", "mixtral-8x7b", "--cluster", "a800", "--tp", "8", "--etp", "8", "--ep", "2", "--sequence", "8"]],
    "piper-studies migrate": [["piper-studies", "migrate"]],
    "piper bench balance --load trace:trace.csv --experts 32 --ranks 8": [["bench", "balance", "--experts", "1", "--ranks", "1", "--window", "1", "--steps", "2"]],
    "piper bench flows": [["bench", "flows", "--nodes", "1", "--bytes", "64"]],
    "piper bench collectives --cluster frontier": [["bench", "collectives", "--cluster", "frontier", "--nodes", "2", "--bytes", "64"]],
}


def code_of(page):
    """Code between backticks, outside of blocks, and the lines of blocks."""
    text = (ROOT / page).read_text()
    if page != "README.md":  # their tables hold what --help says, and cli_reference.py to it
        text = re.sub(r"^\|.*$", "", text, flags=re.M)
    blocks = re.findall(r"```(.*?)```", text, flags=re.S)
    return re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S)) + [line for block in blocks for line in block.splitlines()]


def commands_of(page):
    """Those that call the program."""
    return {code for code in code_of(page) if re.match(r"(?!scripts/)(\S+ )*\S*piper(-studies)? [a-z]", code)}


def expected():
    """What the pages name and this file has not, and the reverse; scripts that are not there."""
    named = {code: page for page in PAGES for code in commands_of(page)}
    scripts = {path for page in PAGES for code in code_of(page) for path in re.findall(r"\bscripts/\w+", code)}
    return [f"`{code}` of {named[code]} has no small form here" for code in sorted(set(named) - set(SMALL))] + [
        f"`{code}` is in none of {', '.join(PAGES)} any more" for code in sorted(set(SMALL) - set(named))] + [
        f"{path} is named and is no program" for path in sorted(scripts) if not os.access(ROOT / path, os.X_OK)]


def write_inputs(root):
    (root / "model.json").write_text(json.dumps(MODEL))
    (root / "text.txt").write_text("".join(f"{n} times {n + 3} is {n * (n + 3)}. " for n in range(100)))
    (root / "a.jsonl").write_text("".join(json.dumps({"text": f"line {n}"}) + "\n" for n in range(9)))
    (root / "topology.conf").write_text("SwitchName=s1 Nodes=n[1-4]\n")


def argv(arguments):
    if arguments[0] == "piper-studies":
        return [str(pathlib.Path(PIPER).resolve().with_name("piper-studies")), *arguments[1:]]
    if arguments[0] != "mpirun":
        return [str(pathlib.Path(PIPER).resolve()), *arguments]
    plugin = pathlib.Path(PIPER).resolve().parent / "piper_mpi_openmpi.so"
    return [MPIRUN, "-n", "1", str(pathlib.Path(PIPER).resolve()), *arguments[1:]] if MPIRUN and plugin.exists() else None


def run(root, arguments):
    command = argv(arguments)
    if command is None:
        skip_case("mpirun", "mpirun.openmpi or its plug-in is not there")
        return []
    start = time.monotonic()
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=ENVIRONMENT, timeout=600)
    seconds = time.monotonic() - start
    if os.environ.get("PIPER_SAY"):
        print(f"{seconds:6.2f} s  {' '.join(arguments)}")
    if done.returncode != 0 or not (done.stdout + done.stderr).strip():
        return [f"{' '.join(arguments)}: exit code {done.returncode}: {(done.stderr or done.stdout)[-800:]}"]
    return []


def finished(root):
    """What the runs left: every one its three steps; the one without figures says so and predicts nothing."""
    problems = []
    for name in "abcdef":
        rows = [json.loads(line) for line in (root / f"runs/{name}/metrics.jsonl").read_text().splitlines()]
        if [row["step"] for row in rows] != [1, 2, 3] or not all(row["loss"] > 0 for row in rows):
            problems.append(f"runs/{name}: {rows}")
    comparison = json.loads((root / "runs/c/comparison.json").read_text())
    if "no compute figures for 'fp64'" not in comparison.get("no_prediction", "") or "predicted_step_seconds" in comparison:
        problems.append(f"runs/c predicts, or does not say why not: {comparison}")
    if "Nothing was predicted for this run: cluster here has no compute figures" not in (root / "runs/c/report.html").read_text():
        problems.append("the page of runs/c does not say why nothing is predicted")
    machine = json.loads((root / "here.json").read_text())
    if "rank_scatter_ratio" in machine["numbers"] or any(name.startswith("all_") for name in machine["numbers"]):
        problems.append(f"the profile of one rank has numbers that mean nothing: {sorted(machine['numbers'])}")
    return problems


def main():
    problems = expected()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        can_train = "--learning-rate" in subprocess.run([PIPER, "train", "--help"], capture_output=True, text=True).stdout
        if not can_train:
            skip("this program cannot train")
        count = 0
        for forms in SMALL.values():
            for arguments in forms:
                count += 1
                problems += run(root, arguments)
        if not problems:
            problems += finished(root)
    for problem in problems:
        print(problem)
    print(f"readme_commands: {len(SMALL)} commands of {len(PAGES)} pages in {count} small forms, {len(problems)} problems, {time.monotonic() - start:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
