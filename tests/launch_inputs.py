#!/usr/bin/env python3
"""Two processes that were given other things, by a byte each: both end with 2 and name what differs, before a step is trained. And
processes whose command line is wrong, all of them or one: each says so. They are started by hand, with a launcher's variables."""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile

from tiny_run import MODEL, PIPER, train, write_inputs


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


LAUNCHERS = {  # what each sets for process P of 2
    "piper launch": {"PIPER_PROCESS": "P", "PIPER_NUM_PROCESSES": "2", "PIPER_LOCAL_PROCESS": "P"},
    "torchrun": {"RANK": "P", "WORLD_SIZE": "2", "LOCAL_RANK": "P", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
                 "TORCHELASTIC_RUN_ID": "none"},
    "Slurm": {"SLURM_PROCID": "P", "SLURM_NTASKS": "2", "SLURM_LOCALID": "P", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "P", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "P"},
    "MPICH": {"PMI_RANK": "P", "PMI_SIZE": "2", "MPI_LOCALRANKID": "P"},
}


def two(commands, launcher="piper launch"):
    """Exit codes and what was said on standard error, of two processes of one run."""
    port = str(free_port())
    started = []
    for process, command in enumerate(commands):
        environment = {**os.environ, **{name: value.replace("P", str(process)) for name, value in LAUNCHERS[launcher].items()},
                       "PIPER_MASTER_ADDRESS": "127.0.0.1", "PIPER_MASTER_PORT": port, "PIPER_SECRET": "0123456789abcdef0123456789"}
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment))
    ended = []
    for process in started:
        said = process.communicate(timeout=120)[1]
        ended.append((process.returncode, said))
    return ended


def train_command(model, text, run, *more):
    return [PIPER, "train", "--model", model, "--data", text, "--cluster", "rtx4090x8", "--precision", "fp32", "--ep", "2", "--sequence", "16",
            "--global-batch", "4", "--steps", "2", "--run", run, *more]


def eval_command(weights, text):
    return [PIPER, "eval", "--weights", weights, "--data", text, "--ep", "2", "--sequence", "16", "--global-batch", "4", "--windows", "4"]


def flip_last_byte(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def not_finite(root, alike):
    """Weights that hold one NaN, in two processes: rank 0 finds it, both know it as a fault of the input, and nothing is exported."""
    weights = root / "not-finite"
    shutil.copytree(root / "exported" / "weights", weights)
    content = bytearray((weights / "model.safetensors").read_bytes())
    content[-4:] = b"\x00\x00\xc0\x7f"
    (weights / "model.safetensors").write_bytes(content)
    for steps, says in (("2", "step 2 is not exported, and the run ends"), ("3", "not finite in 3 steps in a row")):
        command = [*alike, "--weights", str(weights), "--export"]
        command[command.index("--steps") + 1] = steps
        command[command.index("--run") + 1] = str(root / f"not-finite-{steps}")
        for process, (code, said) in enumerate(two([command, command])):
            assert code == 2 and says in said, f"{steps} steps: process {process} ended with {code}: {said}"
        assert not (root / f"not-finite-{steps}" / "weights").exists()


def variants(root):
    """What differs, and the two command lines."""
    model, text, other_text = (str(root / name) for name in ("model.json", "text.txt", "other.txt"))
    run = str(root / "run")
    pathlib.Path(other_text).write_text((root / "text.txt").read_text()[:-1] + "!")
    validation = str(root / "validation.txt")
    middle = (root / "text.txt").read_text()
    pathlib.Path(validation).write_text(middle[:100] + "~" + middle[101:])
    yield "text", [train_command(model, t, run) for t in (text, other_text)]
    folders = [str(root / f"tokens-{number}") for number in range(2)]
    for folder, source in zip(folders, (text, other_text)):
        subprocess.run([PIPER, "data", "build", "--input", source, "--out", folder], check=True, capture_output=True)
    yield "text", [train_command(model, folder, run) for folder in folders]
    yield "text of the validation", [train_command(model, t, run, "--validation", "0.1") for t in (text, other_text)]
    yield "text", [train_command(model, t, run, "--validation", "0.1") for t in (text, validation)]
    for what, change in (("model", {"router_aux_loss_coef": 0.5}), ("model", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
                         ("config", {"initializer_range": 0.3}), ("config", {"bos_token_id": 7})):
        other = root / f"other-{next(iter(change))}" / "model.json"  # of one name, which the strategy holds
        other.parent.mkdir(exist_ok=True)
        other.write_text(json.dumps({**MODEL, **change}))
        yield what, [train_command(m, text, run) for m in (model, str(other))]
    train(root, root / "exported", (1, 2, 2), "--export", "--stop-after", "1")
    weights, others = root / "exported" / "weights", root / "weights"
    shutil.copytree(weights, others)
    flip_last_byte(others / "model.safetensors")
    # One name, as on two hosts: each process has a working folder of its own.
    for at, folder in (("here", weights), ("there", others)):
        (root / at).mkdir()
        (root / at / "weights").symlink_to(folder)
    yield "folder of weights", [["sh", "-c", 'cd "$0" && exec "$@"', str(root / at), str(pathlib.Path(PIPER).resolve()),
                                 *train_command(model, text, run, "--weights", "weights")[1:]] for at in ("here", "there")]
    yield "folder of weights", [eval_command(str(w), text) for w in (weights, others)]
    yield "text", [eval_command(str(weights), t) for t in (text, other_text)]
    strategy = json.loads((root / "exported" / "strategy.json").read_text())
    assert strategy["recompute"] == "none", strategy
    plans = []
    for name, recompute in (("a", "none"), ("b", "full")):
        changed = {**strategy, "recompute": recompute}
        plans.append(root / f"strategy-{name}.json")
        plans[-1].write_text(json.dumps(changed))
    yield "strategy", [[PIPER, "train", "--model", model, "--data", text, "--cluster", "rtx4090x8", "--strategy", str(p), "--steps", "2",
                        "--run", run] for p in plans]


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        count = 0
        for what, commands in variants(root):
            ended = two(commands)
            count += 1
            for process, (code, said) in enumerate(ended):
                assert code == 2 and f"process 1 has another {what} than process 0" in said, f"{what}: process {process} ended with {code}: {said}"
            assert not (root / "run" / "metrics.jsonl").exists(), f"{what}: it has trained"
        alike = train_command(str(root / "model.json"), str(root / "text.txt"), str(root / "run"))
        for code, said in two([alike, alike]):
            assert code == 0, said
        not_finite(root, alike)
        for launcher in LAUNCHERS:
            for command in ([*alike, "--stepz", "3"], alike[:-1]):
                for process, (code, said) in enumerate(two([command, command], launcher)):
                    assert code == 2 and said.strip(), f"{launcher}: process {process} ended with {code} and said '{said}'"
            code, said = two([[PIPER, "--version"], [*alike, "--stepz", "3"]], launcher)[1]
            assert code == 2 and "unknown flag '--stepz'" in said, f"{launcher}: process 1 alone is wrong, ends with {code} and says '{said}'"
    print(f"launch: {count} pairs of processes with other inputs end with 2 and name them; a wrong command line is said by each process")


if __name__ == "__main__":
    main()
