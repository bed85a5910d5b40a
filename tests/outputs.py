#!/usr/bin/env python3
"""Nothing of the user's is lost: an output is never an input, a link is never followed, what Piper did not write stays, `--fresh` and
`--export` remove only what an earlier run of Piper's left, and a name may be any bytes."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from tiny_run import PIPER, train_command, write_inputs

NOTES = "my notes\n"


def piper(*arguments, code, cwd=None, timeout=120):
    done = subprocess.run([os.path.abspath(PIPER), *map(os.fsdecode, arguments)], capture_output=True, text=True, errors="replace", cwd=cwd,
                          timeout=timeout)
    said = done.stdout + done.stderr
    assert done.returncode == code, f"{arguments}: exit code {done.returncode}, not {code}:\n{said}"
    return said


def planner_cases(root):
    """Arguments of every planner's command that writes a file, with the flag that names it."""
    priced = ["--model", root / "model.json", "--cluster", root / "cluster.json"]
    axes = ["--ep", "2", "--sequence", "16", "--precision", "fp32"]
    nodes = ["--nodes", "n0", "--ranks-per-node", "8"]
    yield ["plan", *priced, "--devices", "8", "--global-batch", "16", "--sequence", "16"], "--out"
    yield ["map", "--models", root / "model.json", "--cluster", root / "cluster.json", "--devices", "8", "--global-batch-per-device", "2", "--sequence", "16"], "--out"
    yield ["sim", *priced, *axes], "--trace"
    yield ["sim", *priced, *axes], "--html"
    yield ["export", *priced, *axes, "--to", "deepspeed"], "--out"
    yield ["place", *priced, *axes, *nodes, "--dp", "8"], "--rankfile"
    yield ["place", *priced, *axes, *nodes, "--dp", "8"], "--hostfile"
    yield ["report", root / "cluster.json"], "--out"


def check_planner(root):
    target, link, notes, fifo = (root / name for name in ("target", "link", "notes", "fifo"))
    link.symlink_to(target)
    os.mkfifo(fifo)
    for number, (arguments, flag) in enumerate(planner_cases(root)):
        new = root / f"new{number}"
        piper(*arguments, flag, new, code=0)
        piper(*arguments, flag, new, code=0)  # Piper's own: replaced
        written = new.read_bytes()
        target.write_text(NOTES)
        notes.write_text(NOTES)
        twin = root / "twin.json"
        twin.unlink(missing_ok=True)
        os.link(root / "cluster.json", twin)
        before = twin.read_bytes()
        for path, said in ((link, "symbolic link"), (notes, "was not written by Piper"), (root, "is a folder"), (root / "", "folder"),
                           (fifo, "is a pipe that nobody reads"), ("", "is empty")):
            start = time.monotonic()
            text = piper(*arguments, flag, path, code=2)
            assert said in text and len(text.splitlines()) == 1, (arguments, flag, path, text)
            assert time.monotonic() - start < 20, (arguments, path)
        if root / "cluster.json" in arguments:
            for path in (root / "cluster.json", twin):
                text = piper(*arguments, flag, path, code=2)
                assert "is read by this command" in text or "was not written by Piper" in text, (arguments, path, text)
                text = piper(*arguments, flag, path, "--force", code=2)
                assert "is read by this command" in text, (arguments, path, text)
                assert twin.read_bytes() == before, (arguments, path)
        assert target.read_text() == NOTES and notes.read_text() == NOTES and link.is_symlink(), arguments
        piper(*arguments, flag, notes, "--force", code=0)
        assert notes.read_bytes()[:40] == written[:40], arguments
        # A pipe with a reader, and whatever a shell has opened.
        read = []
        reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
        reader.start()
        piper(*arguments, flag, fifo, code=0)
        reader.join()
        assert read[0][:40] == written[:40], arguments
        piper(*arguments, flag, "/dev/stdout", code=0)
    both = [*list(planner_cases(root))[5][0], "--rankfile", root / "one", "--hostfile", root / "one"]
    assert "both name" in piper(*both, code=2) and not (root / "one").exists()
    both = [*list(planner_cases(root))[2][0], "--trace", root / "one", "--html", root / "sub/../one"]
    (root / "sub").mkdir()
    assert "both name" in piper(*both, code=2) and not (root / "one").exists()
    # The page of a file lies beside it.
    (root / "cluster.html").unlink(missing_ok=True)
    (root / "cluster.html").write_text(NOTES)
    assert "was not written by Piper" in piper("report", root / "cluster.json", code=2)
    assert (root / "cluster.html").read_text() == NOTES


def check_profile(root):
    quick = ["profile", "--ranks", "1", "--cores", "1", "--budget-seconds", "1"]
    out, notes = root / "machine.json", root / "notes"
    notes.write_text(NOTES)
    assert "both name" in piper(*quick, "--out", out, "--resume", out, code=2)
    for more in ([], ["--fresh"]):
        assert "was not written by Piper" in piper(*quick, "--out", out, "--resume", notes, *more, code=2)
    (root / "machine.json.partial").symlink_to(notes)
    assert "symbolic link" in piper(*quick, "--out", out, code=2)
    (root / "machine.json.partial").unlink()
    assert notes.read_text() == NOTES and not out.exists()


def command_of(root, run, *more, mesh=(1, 2, 2)):
    """A run of 4 steps; what `more` gives of a flag takes the place of what it had."""
    command = train_command(root, run, mesh)
    command[command.index("--steps") + 1] = "4"
    command[command.index("--warmup-steps") + 1] = "0"
    more = list(map(str, more))
    for at in range(len(more)):
        if more[at] is not None and more[at].startswith("--") and more[at] in command:
            command[command.index(more[at]) + 1] = more[at + 1]
            more[at] = more[at + 1] = None
    return command + [word for word in more if word is not None]


def run_of(root, run, *more, code=0, mesh=(1, 2, 2)):
    command = command_of(root, root / run, *more, mesh=mesh)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    said = done.stdout + done.stderr
    assert done.returncode == code, f"{' '.join(command)}: exit code {done.returncode}, not {code}:\n{said}"
    return said


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def check_records(root):
    """Each record of a run's folder: a link, and a file of somebody else."""
    run_of(root, "model_run", "--checkpoint-every", "2", "--export", "--validation", "0.1", "--validate-every", "4")
    names = [str(path.relative_to(root / "model_run")) for path in (root / "model_run").rglob("*")
             if path.is_file() and path.name != "lock" and "checkpoints" not in path.parts]
    assert len(names) >= 10, names
    target = root / "record_target"
    for name in names:
        for kind in ("link", "foreign"):
            folder = root / "records"
            shutil.rmtree(folder, ignore_errors=True)
            (folder / name).parent.mkdir(parents=True)
            target.write_text(NOTES)
            if kind == "link":
                (folder / name).symlink_to(target)
            else:
                (folder / name).write_text(NOTES)
            if kind == "foreign" and name not in ("strategy.json", "metrics.jsonl", "weights/config.json"):
                continue
            said = run_of(root, "records", "--export", code=2)
            assert name.rsplit("/", 1)[-1] in said and ("symbolic link" if kind == "link" else "not written by Piper") in said, (name, said)
            assert target.read_text() == NOTES and (folder / name).read_text() == NOTES, (name, kind)
            assert not (folder / "checkpoints").exists() or not any((folder / "checkpoints").iterdir()), name
    run_of(root, "records", "--export", "--force")
    # A run in a folder of one's own, which it reads from.
    here = root / "here"
    here.mkdir()
    (here / "strategy.json").write_text(json.dumps({"mesh": {"ep": 2}, "precision": "fp32", "sequence": 16, "global_batch_sequences": 8}))
    before = contents(here)
    said = piper("train", "--strategy", "strategy.json", "--model", root / "model.json", "--data", root / "text.txt", "--cluster", "rtx4090x8",
                 "--run", ".", "--steps", "2", code=2, cwd=here)
    assert contents(here) == before, said


def check_fresh(root):
    """What --fresh is to remove is there until the new run has done a step."""
    run_of(root, "kept", "--checkpoint-every", "2")
    before = contents(root / "kept")
    (root / "empty").mkdir()
    for more, code in ((["--weights", str(root / "empty")], 2), (["--memory-limit-mib", "0.01"], 1), (["--model", str(root / "none.json")], 2),
                       (["--data", str(root / "none.txt")], 2), (["--sequence", "1000000"], 2), (["--learning-rate", "-1"], 2)):
        run_of(root, "kept", "--fresh", *more, code=code)
        assert contents(root / "kept") == before, more
    run_of(root, "kept", "--fresh")
    after = contents(root / "kept")
    assert not any("checkpoints" in path.parts for path in after) and after[pathlib.Path("metrics.jsonl")] != before[pathlib.Path("metrics.jsonl")]
    # Somebody's file among them stays.
    run_of(root, "kept", "--fresh", "--checkpoint-every", "2")
    for name in ("metrics.jsonl.damaged.mine", "checkpoints/notes", "tensorboard/events.notes"):
        (root / "kept" / name).write_text(NOTES)
    run_of(root, "kept", "--fresh")
    for name in ("metrics.jsonl.damaged.mine", "checkpoints/notes", "tensorboard/events.notes"):
        assert (root / "kept" / name).read_text() == NOTES


def check_export(root):
    run_of(root, "exported", "--export")
    weights = root / "exported/weights"
    for name in ("model-mine.safetensors", "model-00001-of-00009.safetensors"):
        shutil.copy(weights / "model.safetensors", weights / name)
    run_of(root, "exported", "--export", "--seed", "5")
    assert {path.name for path in weights.iterdir()} == {"config.json", "model.safetensors", "model-mine.safetensors", "model-00001-of-00009.safetensors"}
    before = contents(weights)
    said = run_of(root, "exported", "--export", "--weights", str(weights), code=2)
    assert "is read by this command" in said and contents(weights) == before, said


def check_shared_checkpoints(root):
    (root / "one").mkdir()
    (root / "two").mkdir()
    (root / "store").mkdir()
    (root / "one/checkpoints").symlink_to(root / "store")
    (root / "two/checkpoints").symlink_to(root / "store")
    first = subprocess.Popen(command_of(root, root / "one", "--checkpoint-every", "10", "--steps", "100000", mesh=(1, 1, 1)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not any((root / "store").glob("step-*")):
            assert time.monotonic() < deadline and first.poll() is None
            time.sleep(0.05)
        said = run_of(root, "two", "--checkpoint-every", "2", "--fresh", code=2)
        assert "symbolic link" in said or "another run writes there" in said, said
        said = run_of(root, "two", "--checkpoint-every", "2", "--resume", code=2)
        assert "another run writes there" in said, said
        assert first.poll() is None
        # A record that is removed while the run writes it: said, and a new one begun.
    finally:
        first.kill()
        first.wait()


def check_started_at_once(root):
    """Of two that start in one folder at the same time one trains, and the other is told why not."""
    for number in range(6):
        run = root / f"at-once-{number}"
        both = [subprocess.Popen(command_of(root, run, "--checkpoint-every", "10", "--steps", "20", mesh=(1, 1, 1)), stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True) for _ in range(2)]
        said = [process.communicate(timeout=120)[1] for process in both]
        codes = [process.returncode for process in both]
        assert sorted(codes) == [0, 2], (codes, said)
        assert "another run" in said[codes.index(2)] or "is in use" in said[codes.index(2)] or "--resume" in said[codes.index(2)], said
        steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert steps == list(range(1, 21)), steps
        assert subprocess.run([PIPER, "checkpoint", "verify", str(run)], capture_output=True).returncode == 0


def check_removed_record(root):
    run = subprocess.Popen(command_of(root, root / "removed", "--checkpoint-every", "50", "--steps", "400", mesh=(1, 1, 1)), stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    record = root / "removed/metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (record.exists() and record.read_text().count("\n") > 20):
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.02)
    record.unlink()
    text = run.communicate(timeout=120)[0]
    assert run.returncode == 0 and "metrics.jsonl: was removed or replaced while training" in text, text[-2000:]
    lines = record.read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 400 and "written_by" in json.loads(lines[0])
    # The lock: another run may be in the folder now.
    run = subprocess.Popen(command_of(root, root / "unlocked", "--checkpoint-every", "20", "--steps", "100000", mesh=(1, 1, 1)), stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    while not any((root / "unlocked/checkpoints").glob("step-*")) if (root / "unlocked/checkpoints").exists() else True:
        assert time.monotonic() < deadline + 60 and run.poll() is None
        time.sleep(0.02)
    (root / "unlocked/lock").unlink()
    text = run.communicate(timeout=120)[0]
    assert run.returncode == 1 and "lock: was removed or replaced" in text, text[-2000:]


def check_any_bytes(root):
    """A name that is no UTF-8 costs no training, and reads back."""
    odd = pathlib.Path(os.fsdecode(os.fsencode(root) + b"/odd\xff\x1b[31m"))
    odd.mkdir()
    shutil.copy(root / "model.json", odd / "model.json")
    shutil.copy(root / "text.txt", odd / "text.txt")
    more = ["--model", str(odd / "model.json"), "--data", str(odd / "text.txt"), "--checkpoint-every", "2"]
    run_of(root, odd / "run", *more)
    said = run_of(root, odd / "run", "--steps", "6", "--resume", *more)
    assert "another model" not in said
    for arguments in (["model", odd / "model.json"], ["checkpoint", "list", odd / "run"], ["report", odd / "run"],
                      ["plan", "--model", odd / "model.json", "--cluster", root / "cluster.json", "--devices", "8", "--global-batch", "16", "--sequence", "16"]):
        done = subprocess.run([PIPER, *map(str, arguments), "--json"], capture_output=True)
        assert done.returncode == 0, (arguments, done.stderr)
        json.loads(done.stdout.decode())


def check_long_record(root):
    """Gigabytes behind the last record (what a power cut leaves) are cut off and kept, and the run goes on."""
    run_of(root, "long", "--checkpoint-every", "2")
    record = root / "long/metrics.jsonl"
    size = record.stat().st_size
    os.truncate(record, (1 << 32) + 12345)
    said = run_of(root, "long", "--steps", "6", "--resume", "--checkpoint-every", "2")
    assert "metrics.jsonl: line 5 is damaged" in said, said
    assert [json.loads(line)["step"] for line in record.read_text().splitlines()] == [1, 2, 3, 4, 5, 6]
    kept = root / "long/metrics.jsonl.damaged"
    assert kept.stat().st_size == (1 << 32) + 12345 - size and kept.stat().st_blocks < 1000


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write_inputs(root)
        described = subprocess.run([PIPER, "cluster", "rtx4090x8", "--json"], capture_output=True, check=True)
        (root / "cluster.json").write_bytes(described.stdout)
        for check in (check_planner, check_profile, check_records, check_fresh, check_export, check_shared_checkpoints, check_started_at_once, check_removed_record,
                      check_any_bytes, check_long_record):
            start = time.monotonic()
            check(root)
            print(f"{check.__name__}: {time.monotonic() - start:.1f} s", flush=True)
    print("outputs: all passed")


if __name__ == "__main__":
    sys.exit(main())
