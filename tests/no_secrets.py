#!/usr/bin/env python3
"""Environment variables and a run's secret are in nothing that Piper prints or writes, and in no command line: every byte is looked at.

A run by `piper launch`, which makes its secret itself, and one with a given PIPER_SECRET, killed in the middle: checkpoints, traces, pages,
metrics and messages of a failure are there."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from tiny_run import PIPER, children_of, train_command, write_inputs

MESH = (1, 2, 2)
TOKENS = {name: f"recognisable-{name.lower()}-5f2c81d9" for name in
          ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "MY_PASSWORD")}


def variables(pid):
    text = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(part.split("=", 1) for part in text.split("\0") if "=" in part)


def wait_for_steps(run, processes):
    path, until = run / "metrics.jsonl", time.monotonic() + 120
    while not (path.exists() and path.read_text().count("\n") >= 6 and list(run.glob("checkpoints/step-*/manifest.json"))):
        assert all(p.poll() is None for p in processes) and time.monotonic() < until, [p.communicate() for p in processes]
        time.sleep(0.02)


def assert_absent(values, root, said, command_lines):
    """No value, nor its halves, in any byte of a file below `root`, in what was said, or in a command line. Returns the bytes looked at."""
    texts = {"what was printed": said, **{f"the command line of {pid}": line for pid, line in command_lines.items()}}
    for path in sorted(root.rglob("*")):
        texts[str(path)] = str(path).encode()
        if path.is_file():
            texts[str(path)] += path.read_bytes()
    for value in values:
        for part in (value, value[: len(value) // 2], value[len(value) // 2:]):
            for where, text in texts.items():
                assert part.encode() not in text, f"{where} holds {part!r} of a secret"
    return sum(map(len, texts.values()))


def launched(root):
    run = root / "launched"
    command = train_command(root, run, MESH, "--checkpoint-every", "20", "--export")
    command[command.index("--steps") + 1] = "400"
    process = subprocess.Popen([PIPER, "launch", "-n", "2", *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env={**os.environ, **TOKENS})
    wait_for_steps(run, [process])
    pids = children_of(process.pid)
    secret = {variables(pid)["PIPER_SECRET"] for pid in pids}
    lines = {pid: pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() for pid in [process.pid, *pids]}
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    assert len(secret) == 1 and len(next(iter(secret))) == 64
    subprocess.run([PIPER, "report", str(run)], capture_output=True, env={**os.environ, **TOKENS})
    return run, said, lines, secret | set(TOKENS.values())


def given(root):
    """By hand, with a secret that is known, and killed."""
    run, secret = root / "given", "this-secret-was-given-by-hand-77e1"
    command = train_command(root, run, MESH, "--checkpoint-every", "5")
    command[command.index("--steps") + 1] = "100000"
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={
        **os.environ, **TOKENS, "PIPER_PROCESS": str(p), "PIPER_NUM_PROCESSES": "2", "PIPER_MASTER_ADDRESS": "127.0.0.1",
        "PIPER_MASTER_PORT": "29677", "PIPER_SECRET": secret}) for p in range(2)]
    wait_for_steps(run, processes)
    lines = {p.pid: pathlib.Path(f"/proc/{p.pid}/cmdline").read_bytes() for p in processes}
    os.kill(processes[1].pid, signal.SIGKILL)
    said = b"".join(p.communicate(timeout=60)[0] for p in processes)
    assert b"rank 1 (host " in said, said
    # What a process with another secret, or with one that is too short, says of it.
    for other in (secret[::-1], "short-5f2c81d9"):
        done = subprocess.run(command, capture_output=True, timeout=120, env={
            **os.environ, **TOKENS, "PIPER_PROCESS": "0", "PIPER_NUM_PROCESSES": "2", "PIPER_MASTER_PORT": "0", "PIPER_SECRET": other})
        assert done.returncode == 2, done
        said += done.stdout + done.stderr
    return run, said, lines, {secret, secret[::-1], "short-5f2c81d9"} | set(TOKENS.values())


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        for scene in (launched, given):
            run, said, lines, secrets = scene(root)
            assert (run / "metrics.jsonl").exists() and list((run / "checkpoints").iterdir())
            number = assert_absent(secrets, run, said, lines)
            print(f"{scene.__name__}: {len(secrets)} secrets in none of {number} bytes")
        # It can fail.
        (root / "launched" / "leak.json").write_text(json.dumps({"environment": TOKENS["HF_TOKEN"]}))
        try:
            assert_absent(TOKENS.values(), root / "launched", b"", {})
        except AssertionError as found:
            assert "leak.json" in str(found)
        else:
            raise AssertionError("a leak was not found")


if __name__ == "__main__":
    main()
