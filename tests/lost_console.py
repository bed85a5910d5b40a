#!/usr/bin/env python3
"""A console that is full, closed or hung up, and a limit on file sizes: the exit code and one line say what happened, the run is saved
where it is, or its older state stays. Alone, under `piper launch` and under Open MPI where that is there."""
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import time

from switches import skip_case
from tiny_run import PIPER, STEPS, children_of, files, metrics, train, train_command, write_inputs

FULL, CLOSED = "No space left on device", "Broken pipe"
MESH = (2, 1, 1)
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def closed_pipe():
    read, write = os.pipe()
    os.close(read)
    return write


def run(command, stdout, stderr=subprocess.PIPE, **more):
    try:
        done = subprocess.run(command, stdout=stdout, stderr=stderr, text=True, timeout=120, env=ENVIRONMENT, **more)
    finally:
        for stream in {stdout, stderr}:
            if isinstance(stream, int) and stream > 2:
                os.close(stream)
    return done.returncode, done.stderr or ""


def said(message, text):
    """The one line that names the lost output, not counting progress."""
    lines = [line for line in text.splitlines() if line.startswith("piper: ")]
    assert len(lines) == 1 and "standard output cannot be written: " + message in lines[0], text
    return lines[0]


def every_command(root):
    """What is printed by commands that keep no state: each fails, by 1, and by a line unless the reader went away."""
    priced = ["--model", "mixtral-8x7b", "--cluster", "dgx-h100"]
    strategy = str(root / "plan.json")
    subprocess.run([PIPER, "plan", *priced, "--devices", "8", "--out", strategy], check=True, capture_output=True)
    commands = [["--help"], ["--version"], ["plan", "--help"], ["model", "mixtral-8x7b"], ["model", "mixtral-8x7b", "--json"], ["model", "--list"],
                ["cluster", "frontier"], ["cluster", "--list"], ["plan", *priced, "--devices", "8"], ["plan", *priced, "--devices", "8", "--json"],
                ["estimate", *priced, "--strategy", strategy], ["sim", *priced, "--strategy", strategy, "--json"], ["compare", strategy, strategy],
                ["export", "--to", "megatron", "--model", "mixtral-8x7b", "--ep", "8", "--dp", "8"], ["report", strategy], ["exchange", "--cluster", "frontier", "--nodes", "2", "--bytes", "64"],
                ["checkpoint", "list", str(root / "calm")], ["checkpoint", "verify", str(root / "calm"), "--json"]]
    for command in commands:
        for stdout, message in ((lambda: os.open("/dev/full", os.O_WRONLY), FULL), (closed_pipe, CLOSED)):
            code, text = run([PIPER, *command], stdout())
            assert code == 1, f"{command}: exit code {code}: {text}"
            if message == CLOSED:  # a reader who has seen enough, as `| head`
                assert not any(line.startswith("piper: ") for line in text.splitlines()), text
            else:
                said(message, text)
    # Nobody listens any more: the exit code alone is left.
    code, _ = run([PIPER, "model", "mixtral-8x7b"], closed_pipe(), closed_pipe())
    assert code == 1, code
    code, _ = run([PIPER, "model", "no-such-model"], closed_pipe(), closed_pipe())
    assert code == 2, code
    # No standard output at all: no file that is opened later takes its place.
    code, text = run([PIPER, "model", "mixtral-8x7b"], None, preexec_fn=lambda: os.close(1))
    assert code == 1, (code, text)
    said("Bad file descriptor", text)
    return len(commands)


def last_step(run_folder):
    return json.loads((run_folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]


def saved_and_resumed(root, run_folder, calm):
    """The last step is saved, and going on from there ends as the calm run did."""
    step = last_step(run_folder)
    assert step < STEPS, f"the run went on to its end ({step})"
    assert files(run_folder, step), f"step {step} is not saved"
    train(root, run_folder, MESH, "--checkpoint-every", "50", "--resume")
    assert metrics(run_folder)[-1] == metrics(calm)[-1] and files(run_folder, STEPS) == files(calm, STEPS), "the end is not that of the calm run"
    shutil.rmtree(run_folder)
    return step


def started(command, stdout=subprocess.DEVNULL, **more):
    """A run behind its third step. Its steps are slow enough to stop it in the middle of the 50."""
    folder = pathlib.Path(command[command.index("--run") + 1])
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, **more)
    until = time.monotonic() + 60
    path = folder / "metrics.jsonl"
    while not (path.exists() and path.read_text().count("\n") >= 3):
        assert process.poll() is None and time.monotonic() < until, process.communicate()[1]
        time.sleep(0.005)
    return process


def wrappers():
    yield "alone", lambda c: c
    yield "launch", lambda c: [PIPER, "launch", "-n", "2", *c[1:]]
    plugin = pathlib.Path(PIPER).resolve().parent / "piper_mpi_openmpi.so"
    if shutil.which("mpirun.openmpi") and plugin.exists():
        yield "Open MPI", lambda c: ["mpirun.openmpi", "--oversubscribe", "-n", "2", *c]
    else:
        skip_case("Open MPI", "mpirun.openmpi or its plug-in is not there")


def lost_while_training(root, calm, name, wrap):
    command = wrap(train_command(root, root / "run", MESH))
    code, text = run(command, os.open("/dev/full", os.O_WRONLY))
    if name != "Open MPI":  # which takes the output from its processes, and loses it itself
        assert code == 3, f"{name}: exit code {code}: {text}"
        step = last_step(root / "run")
        line = said(FULL, text)
        assert f"stopped after saving step {step}; go on with --resume" in line, line
        saved_and_resumed(root, root / "run", calm)
        # The reader goes away in the middle; with it, in the second round, whoever reads the errors.
        for both in (False, True):
            read, write = os.pipe()
            process = subprocess.Popen(command, stdout=write, stderr=write if both else subprocess.PIPE, env=ENVIRONMENT)
            os.close(write)
            while b"step 4 |" not in os.read(read, 65536):
                pass
            os.close(read)
            text = "" if both else process.communicate(timeout=60)[1].decode()
            assert process.wait(60) == 3, f"{name}: exit code {process.returncode}: {text}"
            both or said(CLOSED, text)
            saved_and_resumed(root, root / "run", calm)
    else:
        shutil.rmtree(root / "run", ignore_errors=True)


def tell_children(process):
    for child in children_of(process.pid):
        os.kill(child, signal.SIGTERM)


def twice(process, number):
    """Again while the step is finished: it asks for the same."""
    process.send_signal(number)
    time.sleep(0.06)
    process.send_signal(number)


def ended(root, name, wrap):
    """What ends a run at once says so in one line, and nothing is saved for it."""
    for number in (signal.SIGQUIT, signal.SIGUSR2, signal.SIGALRM):
        process = started(wrap(train_command(root, root / "run", MESH)), start_new_session=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
        process.send_signal(number)
        text = process.communicate(timeout=5)[1]
        lines = [line for line in text.splitlines() if line.startswith("piper: ")]
        assert process.returncode == -number, f"{name}: {number.name}: exit code {process.returncode}: {text}"
        assert len(lines) == 1 and f"ended at once by {number.name}" in lines[0], text
        assert not list((root / "run").glob("checkpoints/step-*")), number.name
        shutil.rmtree(root / "run")


def limit_of_time(root):
    """The kernel's own signal. Where nothing is saved it ends the command, and says why."""
    limit = lambda: (resource.setrlimit(resource.RLIMIT_CPU, (1, 20)), resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
    code, text = run([PIPER, "plan", "--model", "deepseek-v3", "--cluster", "dgx-h100", "--devices", "1024"], subprocess.DEVNULL, preexec_fn=limit)
    assert code == -signal.SIGXCPU and "the limit of processor time" in text.splitlines()[-1], (code, text)
    command = train_command(root, root / "run", MESH)
    command[command.index("--steps") + 1] = "100000"
    code, text = run(command, subprocess.DEVNULL, preexec_fn=limit)
    assert code == 3 and text.count("asked to stop") == 1 and files(root / "run", last_step(root / "run")), (code, text)
    shutil.rmtree(root / "run")


def told(root, calm, name, wrap):
    """A hangup, of the process and of its whole group."""
    ways = {"hangup": lambda p: p.send_signal(signal.SIGHUP), "the job's time is nearly over, twice": lambda p: twice(p, signal.SIGUSR1),
            "the limit of processor time, twice": lambda p: twice(p, signal.SIGXCPU)}
    if name != "Open MPI":
        ways["hangup of the group"] = lambda p: os.killpg(p.pid, signal.SIGHUP)
        ways["the group told to end, and once more"] = lambda p: (os.kill(p.pid, signal.SIGTERM), os.killpg(p.pid, signal.SIGTERM))
    else:
        ways = {"its processes told to end": tell_children}  # mpirun passes no SIGHUP on, and ends a run that it is told to end
    for way, tell in ways.items():
        process = started(wrap(train_command(root, root / "run", MESH)), start_new_session=True)
        tell(process)
        text = process.communicate(timeout=60)[1]
        assert process.returncode == 3, f"{name}: {way}: exit code {process.returncode}: {text}"
        assert "asked to stop" in text, text
        saved_and_resumed(root, root / "run", calm)


def told_early(root):
    """In the start, in a save, in what follows the last step: nothing is left half, and the code says what is."""
    moments = [lambda p, s=s: time.sleep(s) for s in (0.02, 0.1, 0.3, 0.6)] + [lambda p: wait_until(p, lambda: list((root / "run").glob("checkpoints/*.tmp-*")))] * 2
    moments += [lambda p: wait_until(p, lambda: (root / "run/weights").exists())]
    for number, wait in enumerate(moments):
        command = train_command(root, root / "run", MESH, "--checkpoint-every", "5", "--validation", "0.1", "--validate-every", "5", "--export")
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        wait(process)
        process.terminate()
        text = process.communicate(timeout=60)[1]
        assert process.returncode in (0, 3, -signal.SIGTERM), f"moment {number}: exit code {process.returncode}: {text}"
        if process.returncode >= 0:
            step = last_step(root / "run")
            assert files(root / "run", step) and (process.returncode == 3 or step == STEPS), f"moment {number}: exit code {process.returncode} behind step {step}: {text}"
            done = subprocess.run([PIPER, "checkpoint", "verify", str(root / "run")], capture_output=True, text=True)
            assert done.returncode == 0 and "unfinished" not in done.stdout, done.stdout + done.stderr
        shutil.rmtree(root / "run", ignore_errors=True)


def wait_until(process, condition):
    while process.poll() is None and not condition():
        time.sleep(0.001)


def ignored(root, calm, name, wrap):
    """As nohup starts it: a hangup is nothing to it."""
    process = started(wrap(train_command(root, root / "run", MESH)), start_new_session=True,
                      preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    os.killpg(process.pid, signal.SIGHUP)
    text = process.communicate(timeout=120)[1]
    assert process.returncode == 0 and "asked to stop" not in text, f"{name}: {process.returncode}: {text}"
    assert metrics(root / "run") == metrics(calm), name
    shutil.rmtree(root / "run")


def too_large(root, name, wrap):
    """A limit on the size of files (SIGXFSZ): the save fails, by name; the older one stays."""
    folder = root / "run"
    train(root, folder, MESH, "--checkpoint-every", "5", "--stop-after", "5")
    before = files(folder, 5)
    limit = max(f["bytes"] for f in before) // 2
    command = wrap(train_command(root, folder, MESH, "--checkpoint-every", "5", "--resume"))
    code, text = run(command, subprocess.DEVNULL, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert code == 1, f"{name}: exit code {code}: {text}"
    assert "step-00000010: not saved; earlier checkpoints are untouched" in text and "File too large" in text, f"{name}: {text}"
    subprocess.run([PIPER, "checkpoint", "verify", str(folder)], check=True, capture_output=True)
    assert files(folder, 5) == before and not (folder / "checkpoints/step-00000010").exists()
    shutil.rmtree(folder)


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        calm = root / "calm"
        train(root, calm, MESH, "--checkpoint-every", "50")
        limit_of_time(root)
        told_early(root)
        print(f"{every_command(root)} commands: a full device and a closed pipe are said, exit code 1")
        for launcher, wrap in wrappers():
            lost_while_training(root, calm, launcher, wrap)
            told(root, calm, launcher, wrap)
            if launcher != "Open MPI":
                ignored(root, calm, launcher, wrap)
                ended(root, launcher, wrap)
                too_large(root, launcher, wrap)  # Open MPI's own files in shared memory are beyond such a limit
            print(f"{launcher}: what it meets is saved or kept, and said")


if __name__ == "__main__":
    main()
