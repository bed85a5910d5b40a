"""Piper and its opponents in turn, all on the same number of processes of this machine (two, unless a bench asks for more): what
scripts/bench_pipeline, scripts/bench_axes and scripts/bench_expert_parallel share.

A side is a group of processes that reads lines and answers them (tests/opponents/partner.py; `piper bench ... --serve`). All sides
are started once and wait while another one runs. A round asks every side for the seconds of a step, and then goes backwards;
a ratio is of two figures of the same round."""
import argparse
import contextlib
import json
import os
import pathlib
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OPPONENTS = ROOT / "tests" / "opponents"
PYTHON, BENCH_PYTHON = ROOT / ".venv" / "bin" / "python", ROOT / ".venv-bench" / "bin" / "python"
RANKS = 2
TOLERANCE = 1e-4  # of the norm of a gradient, and of the loss
# Open MPI refuses root unless told; shared memory inside the machine.
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "self,vader"}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def say(*words):
    print(*words, file=sys.stderr, flush=True)


class Loopback:
    """Where the ranks of a side run: on this machine, each on its core, over loopback. (The other place is emulated.Network.)"""
    has_mpi, refused = True, ""

    def __init__(self, ranks=RANKS):
        self.ranks = ranks

    def commands(self, command):
        """A rank a core, so that two of them share one only where there are too few (mpirun --bind-to core does the same)."""
        cores = sorted(os.sched_getaffinity(0))
        return [["taskset", "-c", cores[r % len(cores)], *command] for r in range(self.ranks)]

    def piper_environments(self):
        """What `piper launch` sets."""
        common = {"PIPER_NUM_PROCESSES": self.ranks, "PIPER_MASTER_ADDRESS": "127.0.0.1", "PIPER_MASTER_PORT": free_port(), "PIPER_SECRET": secrets.token_hex(16)}
        return [{**common, "PIPER_PROCESS": r} for r in range(self.ranks)]

    def torch_environments(self):
        """What torchrun sets, and gloo's interface."""
        common = {"WORLD_SIZE": self.ranks, "LOCAL_WORLD_SIZE": self.ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "GLOO_SOCKET_IFNAME": "lo"}
        return [{**common, "RANK": r, "LOCAL_RANK": r} for r in range(self.ranks)]

    def counting(self, _name, _count):
        """What the network carries while a side executes so many steps: loopback does not say."""
        return contextlib.nullcontext()


class Side:
    def __init__(self, name, commands, environments, place=Loopback()):
        self.name, self.place = name, place
        self.errors = tempfile.TemporaryFile("w+")
        self.processes = [subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                           env={**os.environ, **ONE_THREAD, **environment}) for command, environment in zip(commands, environments)]

    def ask(self, *words):
        with contextlib.suppress(BrokenPipeError):  # a process has ended, and its answer will be missing
            for process in self.processes:
                process.stdin.write(" ".join(map(str, words)) + "\n")
                process.stdin.flush()
        answer = "" if any(process.poll() is not None for process in self.processes) else self.processes[0].stdout.readline().strip()
        if not answer:
            self.end()
            self.errors.seek(0)
            raise RuntimeError(f"{self.name} ended: ...{self.errors.read()[-1500:]}")
        return answer

    def seconds(self, what, rows, count):
        with self.place.counting(self.name, count) if what == "steps" else contextlib.nullcontext():
            return float(self.ask(what, rows, count))

    def end(self):
        for process in self.processes:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def texts(variables):
    return {key: str(value) for key, value in variables.items()}


class Piper(Side):
    def __init__(self, program, over, *arguments, name="", place=Loopback()):
        super().__init__(f"piper, {over}{name}", *self.start_of(over, [program, *arguments, "--serve"], place=place), place)

    @staticmethod
    def start_of(over, command, environment={}, place=Loopback()):
        """Commands and environments of its processes."""
        if over == "Open MPI":
            bind = "core" if place.ranks <= len(os.sched_getaffinity(0)) else "core:overload-allowed"
            return [["mpirun.openmpi", "--oversubscribe", "--bind-to", bind, "-n", place.ranks, *command]], [{**OPEN_MPI, **environment}]
        return place.commands(command), [texts({**of_rank, **environment}) for of_rank in place.piper_environments()]


class Opponent(Side):
    def __init__(self, name, python, script, *arguments, environment={}, place=Loopback()):
        self.started = python, script, *arguments
        super().__init__(name, place.commands([python, OPPONENTS / script, *arguments]),
                         [texts({**of_rank, "PYTHONPATH": OPPONENTS, **environment}) for of_rank in place.torch_environments()], place)


class NoOpponent(SystemExit):
    """Nobody stands against Piper."""


def deepspeed_python():
    """The interpreter that has DeepSpeed, or None, with the reason said."""
    if not BENCH_PYTHON.exists():
        say("DeepSpeed is left out: there is no .venv-bench; scripts/setup --bench makes it")
        return None
    done = subprocess.run([BENCH_PYTHON, "-c", "import deepspeed; print(deepspeed.__version__)"], capture_output=True, text=True,
                          env={**os.environ, "DS_ACCELERATOR": "cpu"})
    if done.returncode:
        say(f"DeepSpeed is left out: it does not load: {done.stderr.strip().splitlines()[-1]}")
        return None
    return BENCH_PYTHON


def torch_python():
    """The interpreter that has torch; ends the bench where there is none."""
    for python in (PYTHON, pathlib.Path(sys.executable)):
        if python.exists() and not subprocess.run([python, "-c", "import torch, safetensors"], capture_output=True).returncode:
            return python
    print("skipped: no torch and safetensors here; scripts/setup --tests installs them")
    sys.exit(77)


def wires(program):
    """MPI, where there is one, and Piper's own TCP; the first is the one that counts."""
    over = ["TCP"]
    if shutil.which("mpirun.openmpi") and (pathlib.Path(program).resolve().parent / "piper_mpi_openmpi.so").exists():
        over.insert(0, "Open MPI")
    else:
        say("Open MPI is left out: there is no mpirun.openmpi, or Piper was built without it")
    return over


def piper_sides(program, *arguments, name="", place=Loopback()):
    return [Piper(program, one, *arguments, name=name, place=place) for one in (wires(program) if place.has_mpi else ["TCP"])]


def summary(values):
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def agree(sides, rows, folder, every_piper):
    """Every side of Piper executes a step and saves it; an opponent must find the same as the last before it, and the first opponent the
    same as each of them where `every_piper`. Returns the opponents that start."""
    found, of_pipers = {}, []
    for number, side in enumerate(list(sides)):
        if isinstance(side, Piper):
            of_piper = pathlib.Path(folder) / str(number)  # files of their own: who has read one has it mapped
            of_piper.mkdir()
            side.ask("save", rows, of_piper)
            of_pipers.append(of_piper)
            continue
        checked = of_pipers if every_piper and not found else of_pipers[-1:]
        try:
            found[side.name] = max((json.loads(side.ask("check", rows, one)) for one in checked), key=lambda worst: worst["gradient"])
        except RuntimeError as error:
            say(f"  {side.name} is left out: {error}")
            sides.remove(side)
            continue
        worst = found[side.name]
        say(f"  {side.name}: worst gradient differs by {worst['gradient']:.1e} of its norm, loss by {worst['loss']:.1e}")
    return found


def measure(sides, rows, options):
    """Seconds of a step by side, and of the products' limit: a list over the rounds each."""
    pipers = [side for side in sides if isinstance(side, Piper)]
    steps = {side.name: max(1, round(options.seconds / side.seconds("steps", rows, 2))) for side in sides}
    times = {side.name: [] for side in sides}
    limits = []
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            times[side.name].append(side.seconds("steps", rows, steps[side.name]))
        limits.append(pipers[0].seconds("limit", rows, steps[pipers[0].name]))
        say(f"  round {number + 1} of {options.rounds}: " + ", ".join(f"{name} {of_side[-1] * 1e3:.1f}" for name, of_side in times.items())
            + f"; products {limits[-1] * 1e3:.1f} ms")
    return times, limits


def compare(sides, rows, options, every_piper=False, choose=None):
    """The side of Piper that counts is the one that `choose` names, once all agree; without it the first."""
    with tempfile.TemporaryDirectory() as folder:
        errors = agree(sides, rows, folder, every_piper)
    first = choose() if choose else next(side.name for side in sides if isinstance(side, Piper))
    times, limits = measure(sides, rows, options)
    opponents = [name for name in times if name in errors]
    if not opponents:
        raise NoOpponent("no opponent has started")
    best = min(opponents, key=lambda name: statistics.median(times[name]))
    return {"rows": rows, "best_opponent": best, "piper": first,
            "limit_seconds": summary(limits),
            "sides": {name: {"seconds": summary(of_side),
                             "over_limit": summary([t / l for t, l in zip(of_side, limits)]),
                             "over_piper": summary([t / p for t, p in zip(of_side, times[first])]),
                             "best_opponent_over_it": summary([b / t for b, t in zip(times[best], of_side)]),
                             **({"errors": errors[name]} if name in errors else {})} for name, of_side in times.items()}}


def spread(of, digits=2):
    return f"{of['median']:.{digits}f} ({of['lowest']:.{digits}f}-{of['highest']:.{digits}f})"


def print_table(title, result):
    print(f"{title}; its products alone: {result['limit_seconds']['median'] * 1e3:.2f} ms")
    print(f"  {'':34} {'ms':>9}  {'/ products':18} {'/ piper':18} {'worst gradient':>14}")
    for name, side in result["sides"].items():
        error = f"{side['errors']['gradient']:14.1e}" if "errors" in side else ""
        print(f"  {name:34} {side['seconds']['median'] * 1e3:9.2f}  {spread(side['over_limit']):18} {spread(side['over_piper']):18} {error}".rstrip())


def parser(description):
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=9)
    made.add_argument("--seconds", type=float, default=0.6, help="how long a side is measured in a round (0.6)")
    made.add_argument("--piper", default=str(ROOT / "build" / "release" / "piper"))
    made.add_argument("--json", nargs="?", const="-", metavar="FILE", help="write the results as JSON (default: to the console)")
    return made


def report(results, titles, aim, options, table=print_table):
    """Prints; true when the aim is reached and every opponent found what Piper found."""
    fast = True
    for title, result in zip(titles, results):
        ratio = result["sides"][result["best_opponent"]]["over_piper"]
        reached = ratio["median"] >= aim
        fast = fast and reached
        result.update(aim=aim, aim_reached=reached)
        if options.json != "-":
            table(title, result)
            print(f"  the fastest of the others, {result['best_opponent']}, over {result['piper']}: {spread(ratio)}; aim {aim}{'' if reached else ': MISSED'}")
    if options.json == "-":
        print(json.dumps(results, indent=2))
    elif options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=2) + "\n")
    right = True
    for result in results:
        for name, side in result["sides"].items():
            errors = side.get("errors", {"gradient": 0, "loss": 0})
            if not max(errors["gradient"], errors["loss"]) <= TOLERANCE:
                right = False
                say(f"{name} and Piper do not compute the same: {errors}")
    return right and fast
