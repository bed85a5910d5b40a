#!/usr/bin/env python3
"""Names from files, folders and arguments that would steer a terminal, or begin a line of their own: whatever a command prints of them
is one line, without controls, marks of direction or Unicode's ends of lines. JSON reads back to the name as it is."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from switches import skip_case
from tiny_run import MODEL, PIPER, train_command, write_inputs

# An escape, C1 as UTF-8 and as a byte, a mark of direction, a separator of lines, a line of its own.
NASTY = b"x\x1b[31m\xc2\x9b31m\x9b\xe2\x80\xae\xe2\x81\xa7\xd8\x9c\xe2\x80\xa8\rpiper: all is well\npiper: all is well\x7f"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff]")
WORK = tempfile.mkdtemp()
AS_TEXT = NASTY.decode(errors="ignore")  # in a JSON file: what is UTF-8


def checked(command, out, what):
    try:
        text = out.decode()
    except UnicodeDecodeError as error:
        raise AssertionError(f"{command}: {what}: {error}: {out!r}") from error
    assert not STEERING.search(text), f"{command}: {what}: {STEERING.search(text)}: {text!r}"
    assert not any(line.startswith(("piper: all is well", "all is well")) for line in text.splitlines()), f"{command}: {what}: {text!r}"


def run(*command, code=None):
    done = subprocess.run([os.path.abspath(PIPER), *command], capture_output=True, timeout=120, cwd=WORK)  # some write where they are
    assert code is None or done.returncode == code, (command, done.returncode, done.stderr)
    assert done.returncode in (0, 1, 2), (command, done.returncode, done.stderr)
    checked(command, done.stdout, "standard output")
    checked(command, done.stderr, "standard error")
    return done


def commands(root, folder):
    """(arguments, exit code)."""
    model, cluster, strategy = folder / "model.json", folder / "cluster.json", folder / "plan.json"
    priced = [b"--model", os.fsencode(model), b"--cluster", os.fsencode(cluster)]
    for command in ("model", "cluster", "report", "validate", "trainer", "compare", "export", "estimate", "sim", "plan", "place", "map",
                    "exchange", "migrate", "moe", "launch", "bench", "train", "eval", "profile", "checkpoint", "data", "signature"):
        yield [command, NASTY], None  # an argument
        yield [command, b"--" + NASTY], 2  # a flag
    yield [NASTY], 2
    for flag in ("--model", "--cluster", "--strategy", "--trainer", "--precision", "--load", "--what-if", "--out", "--nodes", "--schedule"):
        yield ["plan", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--devices", "8", flag, NASTY], None
        yield ["estimate", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--ep", "8", "--dp", "8", flag, NASTY], None
    yield ["model", str(model)], 0
    yield ["cluster", str(cluster)], 0
    yield ["cluster", str(cluster), "--sources"], 0
    yield ["plan", *priced, "--devices", "8", "--global-batch", "64", "--out", str(strategy)], 0
    yield ["estimate", *priced, "--strategy", str(strategy)], 0
    yield ["sim", *priced, "--strategy", str(strategy), "--trace", str(folder / "trace.json")], 0
    yield ["compare", str(strategy), str(strategy)], None
    yield ["export", "--to", "megatron", "--model", str(model), "--ep", "2", "--dp", "2"], None
    yield ["place", *priced, "--ep", "2", "--dp", "2"], None
    yield ["report", str(strategy), "--out", str(folder / "page.html")], 0
    yield ["report", str(folder)], None
    yield ["moe", *priced, "--ep", "2"], None
    yield ["map", "--cluster", str(cluster), "--models", str(model)], None


def trained(folder):
    if not pathlib.Path(PIPER).with_name("piper-train").exists():
        skip_case("training", "a build without libtorch")
        return
    (folder / "model.json").write_text(json.dumps(MODEL))
    command = train_command(folder, folder / "run", (1, 2, 2), "--stop-after", "2")
    run(*command[1:])
    for name in ("list", "verify"):
        run("checkpoint", name, str(folder / "run"))
    run("report", str(folder / "run"))
    run("data", "build", "--text", str(folder / "text.txt"), "--out", str(folder / "set"))


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        folder = pathlib.Path(os.fsdecode(os.fsencode(root) + b"/" + NASTY))
        folder.mkdir()
        write_inputs(folder)
        (folder / "model.json").write_text(json.dumps({**MODEL, "name": AS_TEXT, "_name_or_path": AS_TEXT, AS_TEXT: AS_TEXT}))
        cluster = json.loads(subprocess.run([PIPER, "cluster", "dgx-h100", "--json"], capture_output=True, check=True).stdout)
        for key in ("name", "description", "device"):
            cluster[key] = AS_TEXT
        for level in cluster["levels"]:
            level["name"] += AS_TEXT
        (folder / "cluster.json").write_text(json.dumps(cluster))
        count = 0
        for arguments, code in commands(root, folder):
            run(*arguments, code=code)
            count += 1
        shown = json.loads(run("cluster", str(folder / "cluster.json"), "--json", code=0).stdout)
        assert shown["name"] == AS_TEXT and shown["description"] == AS_TEXT, shown
        trained(folder)
        shutil.rmtree(WORK)
        print(f"{count} command lines with a name that steers a terminal: what is printed of it is one line of plain text")


if __name__ == "__main__":
    main()
