#!/usr/bin/env python3
"""A run that has every step but not its results: --resume exports, compares and ends with 0, and `piper checkpoint export` gives the
same weights without training. What a resume changes of the training is said, a line each; what cannot be told is said or refused."""
import hashlib
import json
import pathlib
import shutil
import subprocess
import tempfile

from tiny_run import MODEL, PIPER, STEPS, train, train_command, write_inputs

MESH = (1, 2, 2)


def ended(command, code=0):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == code, f"{' '.join(map(str, command))}: exit code {done.returncode}, not {code}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def resumed(root, run, mesh, *more, **values):
    """The command line that goes on, with values in place of the usual ones."""
    command = train_command(root, run, mesh, "--checkpoint-every", "25", "--resume", *more)
    for flag, value in values.items():
        command[command.index("--" + flag.replace("_", "-")) + 1] = str(value)
    return command


def weights(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(pathlib.Path(folder).iterdir())}


def finishes(root, calm, run):
    """As after a kill behind the last save: the checkpoint of the last step, no export and no comparison."""
    for words, mesh, more in (([], MESH, []), ([], (1, 1, 1), []), ([], MESH, ["--zero", "3"]), (["launch", "-n", "2"], MESH, [])):
        shutil.rmtree(run / "weights", ignore_errors=True)
        (run / "comparison.json").unlink(missing_ok=True)
        records = (run / "metrics.jsonl").read_bytes()
        said = ended([PIPER, *words, *resumed(root, run, mesh, "--export", *more)[1:]])
        assert f"nothing is left to train: step {STEPS} is the last" in said, said
        assert weights(run / "weights") == weights(calm / "weights"), f"{words} {mesh} {more}: other weights than the calm run's"
        comparison = json.loads((run / "comparison.json").read_text())
        assert comparison["measured_step_seconds"] > 0 and comparison["num_steps"] == STEPS, comparison
        assert (run / "metrics.jsonl").read_bytes() == records, "the records have changed"
    assert f"the checkpoint has {STEPS} steps already" in ended(resumed(root, run, MESH, "--export", steps=STEPS - 10, warmup_steps=1), code=2)
    ended([PIPER, "report", run])
    done = subprocess.run([*resumed(root, run, MESH), "--json"], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert len(result["steps"]) == STEPS


def exports(root, calm, run):
    def export(*words, code=0):
        return ended([PIPER, "checkpoint", "export", *words], code)

    expected = weights(calm / "weights")
    for number, given in enumerate((run, run / "checkpoints", run / "checkpoints" / f"step-{STEPS:08}")):
        export(given, "--out", root / f"out-{number}")
        assert weights(root / f"out-{number}") == expected, f"{given}: other weights than the run's export"
    export(run / "checkpoints" / "step-00000025", "--out", root / "earlier")
    assert weights(root / "earlier").keys() == expected.keys() and weights(root / "earlier") != expected
    (root / "mine").mkdir()
    (root / "mine" / "notes.txt").write_text("mine")
    (root / "link").symlink_to(root / "nowhere")
    for out, why in ((root / "mine", "is there already"), (root / "link", "is there already"), ("", "--out: is empty")):
        assert why in export(run, "--out", out, code=2)
    assert [path.name for path in (root / "mine").iterdir()] == ["notes.txt"]
    assert "there is no such" in export(root / "absent", "--out", root / "none", code=2) and not (root / "none").exists()

    # A checkpoint of an earlier Piper, which holds neither a config nor settings.
    old = root / "old"
    shutil.copytree(run, old)
    manifest = old / "checkpoints" / f"step-{STEPS:08}" / "manifest.json"
    content = json.loads(manifest.read_text())
    assert content["state"]["extra"].keys() >= {"config", "training"}, content["state"]["extra"]
    for key in ("config", "training"):
        del content["state"]["extra"][key]
    manifest.write_text(json.dumps(content))
    (manifest.parent / "manifest.json.sha256").write_text(f"{hashlib.sha256(manifest.read_bytes()).hexdigest()}  manifest.json\n")
    assert "give --model" in export(old, "--out", root / "old-out", code=2)
    other = root / "other.json"
    other.write_text(json.dumps({**MODEL, "rope_theta": 500000.0}))
    assert "another model" in export(old, "--out", root / "old-out", "--model", other, code=2)
    export(old, "--out", root / "old-out", "--model", root / "model.json")
    assert weights(root / "old-out") == expected
    assert "allowed: without --model" in export(run, "--out", root / "twice", "--model", other, code=2)
    assert "did not note batch, sequence, rates and schedule" in ended(resumed(root, old, MESH))

    shard = sorted((run / "checkpoints" / f"step-{STEPS:08}").glob("rank-*"))[0]
    damaged = bytearray(shard.read_bytes())
    damaged[-1] ^= 1
    shard.write_bytes(damaged)
    assert "is damaged" in export(shard.parent, "--out", root / "bad", code=2) and not (root / "bad").exists()


def changes(root):
    run = root / "again"
    train(root, run, MESH, "--checkpoint-every", "5", "--stop-after", "5", "--seed", "7")
    said = ended([*resumed(root, run, MESH, "--learning-rate", "0.002", "--stop-after", "6", "--seed", "8", sequence=8, global_batch=16, steps=60,
                           warmup_steps=3)])
    for line in ("changed: --sequence is 8 from step 6 on, 16 before", "changed: --global-batch is 16 from step 6 on, 8 before",
                 "changed: --steps is 60 from step 6 on, 50 before", "changed: --learning-rate is 0.002 from step 6 on, 0.001 before",
                 "changed: --minimum-learning-rate is 0.0002 from step 6 on, 0.0001 before",
                 "changed: --warmup-steps is 3 from step 6 on, 5 before", "not changed: the seed stays 7, as the run began; --seed is 8"):
        assert line in said.splitlines(), f"'{line}' is not said: {said}"
    said = ended([*resumed(root, run, MESH, "--learning-rate", "0.002", "--stop-after", "7", "--seed", "7", sequence=8, global_batch=16, steps=60,
                           warmup_steps=3)])
    assert "changed" not in said, said
    # What the forward and the loss read of the config cannot change.
    for change in ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, {"router_aux_loss_coef": 0.5}):
        other = root / "another.json"
        other.write_text(json.dumps({**MODEL, **change}))
        command = resumed(root, run, MESH)
        command[command.index("--model") + 1] = str(other)
        assert "is a checkpoint of another model" in ended(command, code=2)


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        calm, run = root / "calm", root / "run"
        train(root, calm, MESH, "--checkpoint-every", "25", "--export")
        train(root, run, MESH, "--checkpoint-every", "25")
        finishes(root, calm, run)
        exports(root, calm, run)
        changes(root)
    print("a finished run exports and compares when it is resumed; a checkpoint exports by itself; changes of the training are said")


if __name__ == "__main__":
    main()
