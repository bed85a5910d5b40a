"""A model that trains 50 steps in a second, for tests that need whole runs."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

from switches import skip_case

PIPER = os.environ.get("PIPER", "build/release/piper")
MODEL = {"model_type": "mixtral", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 48, "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 256, "rms_norm_eps": 1e-5,
         "max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu"}
STEPS = 50
# Measured, not computed: times, and peak memory (which messages are in flight at once depends on timing).
MEASURED = ("step_seconds", "tokens_per_second", "mfu", "peak_bytes", "rebalance_seconds")


def write_inputs(root):
    """Model and text; what train_command() expects in `root`."""
    (root / "model.json").write_text(json.dumps(MODEL))
    (root / "text.txt").write_text("".join(f"{n} times {n + 3} is {n * (n + 3)}. " for n in range(400)))


def train_command(root, run, mesh, *more):
    pp, ep, dp, tp, cp = (*mesh, *(1, 1)[len(mesh) - 3:])
    shared = ["--tp", str(tp), "--sequence-parallel"] if tp > 1 else []
    shared += ["--cp", str(cp)] if cp > 1 else []
    data = [] if "--data" in more else ["--data", str(root / "text.txt")]
    precision = [] if "--precision" in more else ["--precision", "fp32"]
    return [PIPER, "train", "--model", str(root / "model.json"), *data, "--cluster", "rtx4090x8", *precision, "--pp", str(pp), "--ep", str(ep), "--dp", str(dp), *shared, "--sequence", "16", "--global-batch", "8",
            "--steps", str(STEPS), "--warmup-steps", "5", "--run", str(run), *more]


def train(root, run, mesh, *more, code=0):
    """Runs to the end; returns what was printed."""
    command = train_command(root, run, mesh, *more)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, f"{' '.join(command)}: exit code {done.returncode}, not {code}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


# Open MPI refuses root, and more processes than cores, unless told.
LAUNCHERS_ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def launch(number, command, *more):
    return [PIPER, "launch", "-n", str(number), *more, *command[1:]]


def launchers():
    """Name, and what to write before a command for so many processes."""
    yield "launch, 4 processes", lambda c: launch(4, c)
    yield "launch, 2 processes", lambda c: launch(2, c)
    for name, program, flags in (("Open MPI", "mpirun.openmpi", ["--oversubscribe", "-n", "4"]), ("MPICH", "mpiexec.mpich", ["-n", "4"])):
        plugin = pathlib.Path(PIPER).resolve().parent / f"piper_mpi_{name.lower().replace(' ', '')}.so"
        if shutil.which(program) is None or not plugin.exists():
            skip_case(name, f"{program} or {plugin.name} is not there")
            continue
        yield name, lambda c, program=program, flags=flags: [program, *flags, *c]
    torchrun = shutil.which("torchrun", path=os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if torchrun is not None:
        yield "torchrun", lambda c: [torchrun, "--no-python", "--nproc-per-node", "2", "--master-port", "29611", "--", *c]
    else:
        skip_case("torchrun", "it is not there")


def children_of(pid):
    """The processes that `pid` has started, as pgrep -P would list them."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:  # it has ended meanwhile
            continue
        if parent == pid:
            found.append(int(stat.parent.name))
    return found


def is_gone(pid):
    """Whether the process has ended, be it that nobody has waited for it."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def metrics(run):
    lines = [json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in MEASURED} for line in lines]


def files(run, step):
    """Name, bytes and SHA-256 of a checkpoint's shards."""
    return json.loads((pathlib.Path(run) / f"checkpoints/step-{step:08}/manifest.json").read_text())["files"]
