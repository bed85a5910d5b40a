#!/usr/bin/env python3
"""Input that is no regular file (a pipe that nobody writes, a socket, a device without end) is refused at once, by name, wherever
Piper reads a file; `-` is standard input for configs and strategies."""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from switches import skip_case
from tiny_run import MODEL, PIPER, train, write_inputs

STUDIES = str(pathlib.Path(PIPER).with_name("piper-studies"))
LIMIT = 1  # seconds beyond what it takes to start


def make(kind, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        here = os.getcwd()
        os.chdir(path.parent)  # the name of a socket is short
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path.name)
        os.chdir(here)
    else:
        path.symlink_to("/dev/zero")
    return str(path)


def cases(root, kind, can_train):
    """(arguments, the path that the message names)."""
    bad = make(kind, root / "bad.json")
    priced = ["--model", "mixtral-8x7b", "--cluster", "dgx-h100"]
    plan = str(root.parent / "plan.json")
    yield ["model", bad], bad
    yield ["model", str(pathlib.Path(make(kind, root / "folder/config.json")).parent)], str(root / "folder/config.json")
    yield ["cluster", bad], bad
    yield ["estimate", *priced, "--strategy", bad], bad
    yield ["sim", *priced, "--strategy", bad], bad
    yield ["sim", *priced, "--strategy", plan, "--trainer", bad], bad
    yield ["sim", *priced, "--strategy", plan, "--load", f"trace:{bad}"], bad
    yield ["compare", bad, plan], bad
    yield ["export", "--to", "megatron", bad], bad
    yield ["report", bad], bad
    yield ["validate", bad], bad
    yield ["piper-studies", "phases", bad], bad
    yield ["plan", *priced, "--nodes", "n1", "--topology", bad], bad
    yield ["place", *priced, "--ep", "2", "--nodes", "n1", "--topology", bad], bad
    yield ["bench", "dedup", "--load", f"trace:{bad}"], bad
    shutil.copytree(root.parent / "run", root / "run")
    (root / "run/metrics.jsonl").unlink()
    yield ["report", str(root / "run")], make(kind, root / "run/metrics.jsonl")
    if not can_train:
        return
    text = str(root.parent / "text.txt")
    tiny = ["train", "--model", str(root.parent / "model.json"), "--cluster", "rtx4090x8", "--precision", "fp32", "--sequence", "16", "--steps", "2"]
    yield [*tiny, "--data", bad, "--run", str(root / "new")], bad
    yield [*tiny, "--data", text, "--data", bad, "--run", str(root / "new")], bad
    dataset = pathlib.Path(make(kind, root / "d.idx"))
    (root / "d.bin").write_bytes(b"")
    yield ["data", "show", str(dataset.with_suffix(""))], str(dataset)
    yield ["data", "build", "--input", bad, "--out", str(root / "out")], bad
    shutil.copytree(root.parent / "run/weights", root / "weights")
    (root / "weights/model.safetensors").unlink()
    weights = make(kind, root / "weights/model.safetensors")
    yield [*tiny, "--data", text, "--weights", str(root / "weights"), "--run", str(root / "new")], weights
    yield ["eval", "--weights", str(root / "weights"), "--data", text, "--sequence", "16"], weights
    (root / "weights/model.safetensors").rename(root / "aside")
    yield ["eval", "--weights", str(root / "weights"), "--data", text, "--sequence", "16"], make(kind, root / "weights/model.safetensors.index.json")
    yield ["profile", "--ranks", "1", "--budget-seconds", "1", "--resume", bad], bad


def timed(arguments, **more):
    start = time.monotonic()
    command = [STUDIES, *arguments[1:]] if arguments[0] == "piper-studies" else [PIPER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, **more)
    return done, time.monotonic() - start


def refused(arguments, path, kind, startup):
    try:
        done, seconds = timed(arguments)
    except subprocess.TimeoutExpired:
        return f"{arguments}: still there after 20 s"
    wanted = f"{path}: is {kind}; allowed: a regular file"
    if "--resume" in arguments:  # a file that is written, too: links and what is no file have other words (tests/outputs.py)
        wanted = f"{path}: is " + {"a pipe": "a pipe that nobody reads", "a socket": "no regular file", "a device": "a symbolic link"}[kind]
    if done.returncode != 2 or wanted not in done.stderr:
        return f"{arguments}: exit code {done.returncode}, not '{wanted}': {done.stderr[:500]}"
    for _ in range(2):  # a machine that does other things
        if seconds > startup + LIMIT:
            seconds = min(seconds, timed(arguments)[1])
    if seconds > startup + LIMIT:
        return f"{arguments}: refused after {seconds:.2f} s"
    return None


def standard_input(root):
    model, plan = json.dumps(MODEL), (root / "plan.json").read_text()
    assert timed(["model", "-"], input=model)[0].returncode == 0
    endless_limit = model[:-1] + ', "time_step_limit": [0.0, Infinity]}'  # as Python writes it
    assert timed(["model", "-"], input=endless_limit)[0].returncode == 0
    by_file = timed(["estimate", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--strategy", str(root / "plan.json"), "--json"])[0]
    for arguments in (["estimate", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--strategy", "-", "--json"],):
        done = timed(arguments, input=plan)[0]
        assert done.returncode == 0 and done.stdout == by_file.stdout, done.stderr
    exported = [timed(["export", "--to", "megatron", name], input=plan)[0] for name in ("-", str(root / "plan.json"))]
    assert len({(done.returncode, done.stdout, done.stderr) for done in exported}) == 1, exported
    done = timed(["model", "-"], input="{")[0]
    assert done.returncode == 2 and "standard input: " in done.stderr, done.stderr
    endless = subprocess.Popen(["yes"], stdout=subprocess.PIPE)
    done = timed(["model", "-"], stdin=endless.stdout)[0]
    endless.kill()
    assert done.returncode == 2 and "standard input: is longer than 67108864 bytes" in done.stderr, done.stderr
    done = timed(["launch", "-n", "2", "train", "--model", "-"], input=model)[0]
    assert done.returncode == 2 and "several processes cannot share" in done.stderr, done.stderr


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        can_train = "--learning-rate" in timed(["train", "--help"])[0].stdout
        subprocess.run([PIPER, "plan", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--devices", "8", "--out", str(root / "plan.json")],
                       check=True, capture_output=True)
        (root / "run").mkdir()
        if can_train:
            train(root, root / "run", (1, 1, 1), "--export", "--stop-after", "2")
        else:
            (root / "run/strategy.json").write_text((root / "plan.json").read_text())
            (root / "run/metrics.jsonl").write_text("")
            skip_case("cases of training", "this program cannot train")
        startup = max(timed(["--version"])[1] for _ in range(3))
        problems, count = [], 0
        for kind in ("a pipe", "a socket", "a device"):
            for arguments, path in cases(root / kind.replace(" ", "-"), kind, can_train):
                count += 1
                problems.append(refused(arguments, path, kind, startup))
                if problems[-1]:
                    print(problems[-1], flush=True)
        standard_input(root)
    problems = [p for p in problems if p]
    print(f"not_a_file: {count - len(problems)} of {count} refused within {LIMIT} s; - is standard input")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
