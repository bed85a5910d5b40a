#!/usr/bin/env python3
"""Absurd values: a line that says what is allowed within a second or, where all is as asked, an answer; never a crash, a hang or
thousands of lines. Documents with hundreds of thousands of keys that nobody knows, factors and batches beyond any machine."""
import json
import os
import pathlib
import random
import re
import subprocess
import tempfile

from switches import FULL_COUNTS
from tiny_run import MODEL, PIPER

SECONDS = 1  # of processor time, for what is refused
MANY = 300_000
SEED = 1
PRICED = ["--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--devices", "8"]


def run(*arguments, allowed=(0, 1, 2)):
    """What was printed on standard error, the exit code, and the seconds of processor time."""
    before = os.times()
    done = subprocess.run([PIPER, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    assert done.returncode in allowed, (arguments, done.returncode, done.stderr[-500:])
    assert "internal error" not in done.stderr, (arguments, done.stderr)
    return done, seconds


def problems_of(text):
    return [line for line in text.splitlines() if line.startswith("piper: ")]


def many_keys(folder):
    """Twice the keys are at most some three times the time, all are counted, and 20 lines are shown."""
    path = folder / "many.json"
    cluster = json.loads(run("cluster", "dgx-h100", "--json")[0].stdout)
    kinds = {"keys of shapes": ("model", MODEL, "odd_rank{}"), "keys of no kind": ("model", MODEL, "zq{}"), "misspelt keys": ("model", MODEL, "num_hidden_layer{}"),
             "keys of a cluster": ("cluster", cluster, "levles{}"), "long keys": ("cluster", cluster, "x" * 80 + "{}")}
    for kind, (command, document, key) in kinds.items():
        took = {}
        most = MANY if FULL_COUNTS or kind == "misspelt keys" else MANY // 5
        for count in (most // 10, most):
            path.write_text(json.dumps({**document, **{key.format(n): n + 2 for n in range(count)}}))
            done, took[count] = run(command, path)
            lines = done.stderr.splitlines() + done.stdout.splitlines()
            assert len(lines) < 100, (kind, len(lines))
            if done.returncode == 2:
                assert lines[20:] == [f"piper: ... and {count - 20} more problems"], (kind, lines[18:])
            else:
                assert f"ignored key: ... and {count - 20} more keys" in lines, (kind, lines)
        assert took[most] < 15 * took[most // 10] + 1 and took[most] < 15, (kind, took)
        print(f"{most} {kind}: {took[most]:.2f} s of processor time, {took[most // 10]:.2f} s for a tenth of them")


def what_ifs():
    for quantity in ("memory_bandwidth", "compute", "bandwidth", "latency", "nics", "bandwidth.node", "latency.device", "memory"):
        for by in ("1e300", "1.7e308", "1e-300", "5e-324", "1e7", "1e-7") if FULL_COUNTS else ("1.7e308", "1e-7"):
            done, seconds = run("plan", *PRICED, "--what-if", f"{quantity}=x{by}", allowed=(2,))
            assert len(done.stderr.splitlines()) == 1 and "allowed: " in done.stderr and seconds < SECONDS, (quantity, by, done.stderr, seconds)
    for change in ("compute=x1e6", "compute=x1e-6", "latency=x1e6", "bandwidth=x1e-6", "memory_bandwidth=x1e6"):
        done, _ = run("plan", *PRICED, "--global-batch", "32", "--what-if", change, allowed=(0,))
        assert change in done.stdout and not re.search(r"\d{12}|nan|-\d+ s", done.stdout), done.stdout


def batches():
    """Of a power of two, of a prime, of many divisors: refused within a second, or planned for."""
    for batch in (1 << 31, (1 << 31) - 1, 1 << 32, 4_294_967_291, 2_205_403_200):
        done, seconds = run("plan", *PRICED, "--global-batch", batch, allowed=(2,))
        assert len(problems_of(done.stderr)) == 1 and "--global-batch" in done.stderr and seconds < SECONDS, (batch, done.stderr, seconds)
    for arguments in (("estimate", "--ep", 8, "--dp", 8), ("sim", "--ep", 8, "--dp", 8), ("compare",), ("export", "--to", "megatron", "--ep", 8, "--dp", 8)):
        for more in (("--global-batch", 1 << 31), ("--micro-batch", 1 << 31), ("--sequence", 1 << 32), ("--num-micro-batches", 1 << 31), ("--pp", 1 << 31)):
            done, seconds = run(arguments[0], "--model", "mixtral-8x7b", "--cluster", "dgx-h100", *arguments[1:], *more)
            assert seconds < 5 and len(done.stderr.splitlines()) < 30, (arguments, more, seconds, done.stderr)


BROKEN = {"empty": b"", "cut": b'{"name": "x", "levels": [', "two documents": b"{} {}", "deep": b"[" * 100_000, "a number beyond doubles": b'{"name": 1e999}',
          "a mark of order and a comma": b"\xef\xbb\xbf{,}", "no UTF-8": b'{"name": "\xff\xfe"', "a list": b"[1, 2]", "a word": b"null"}


def broken_documents(folder):
    """Whatever reads a document refuses what is none: one line or some, exit code 2."""
    path = folder / "broken.json"
    readers = (["model", path], ["cluster", path], ["estimate", "--model", "mixtral-8x7b", "--cluster", path, "--ep", "8"], ["estimate", *PRICED[:4], "--strategy", path],
               ["sim", *PRICED[:4], "--strategy", path], ["compare", path, path], ["map", "--strategy", path], ["validate", path],
               ["place", "--strategy", path, "--cluster", "dgx-h100"])
    for name, text in BROKEN.items():
        path.write_bytes(text)
        for reader in readers:
            done, seconds = run(*reader, allowed=(2,))
            lines = done.stderr.splitlines()
            assert lines and len(lines) < 30 and len(problems_of(done.stderr)) == len(lines) and seconds < SECONDS, (name, reader, seconds, done.stderr)


def mutated(document, random):
    """One place of a document, at any depth, has another value."""
    copy = json.loads(json.dumps(document))
    at = copy
    while True:
        key = random.choice(sorted(at)) if isinstance(at, dict) else random.randrange(len(at))
        if not isinstance(at[key], (dict, list)) or not at[key] or random.random() < 0.1:
            at[key] = random.choice((0, -1, 1, 1e300, 2**31, 2**63, 0.5, "", "x", [], {}, None, True))
            return copy
        at = at[key]


def mutated_documents(folder):
    """Strategies and clusters with a value changed: a price or a line, not a crash nor a slow answer."""
    draw = random.Random(SEED)
    strategy = json.loads(run("estimate", *PRICED[:4], "--ep", "4", "--dp", "8", "--pp", "2", "--global-batch", "64", "--json")[0].stdout)["strategy"]
    cluster = json.loads(run("cluster", "dgx-h100", "--json")[0].stdout)
    answered = 0
    for number in range(400 if FULL_COUNTS else 60):
        path = folder / "mutated.json"
        path.write_text(json.dumps(mutated(cluster if number % 2 else strategy, draw)))
        for command in ("estimate", "sim"):
            flags = ["--cluster", path, "--ep", "4", "--dp", "8"] if number % 2 else ["--cluster", "dgx-h100", "--strategy", path]
            done, seconds = run(command, "--model", "mixtral-8x7b", *flags, "--json")
            assert seconds < 5, (command, path.read_text(), seconds)
            assert (done.returncode == 0) == bool(done.stdout) and (done.returncode == 0 or problems_of(done.stderr)), (command, path.read_text(), done)
            answered += done.returncode == 0
    assert answered, "all are refused: this tests little"
    print(f"mutated strategies and clusters: {answered} answers, the others refused")


def main():
    with tempfile.TemporaryDirectory() as name:
        many_keys(pathlib.Path(name))
        broken_documents(pathlib.Path(name))
        mutated_documents(pathlib.Path(name))
    what_ifs()
    batches()
    print("absurd factors and batches: one line each, within a second, or an answer")


if __name__ == "__main__":
    main()
