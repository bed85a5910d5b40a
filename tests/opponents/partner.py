"""What the ranks of every opponent share: one process a rank (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as torchrun sets them),
one thread, gloo. Each rank reads the same lines from its standard input:

    check ROWS FOLDER   takes over the step that Piper saved there (rank<r>.safetensors), executes it, and answers with the worst
                        error of its own results against Piper's: {"loss": ..., "gradient": ..., "tensor": name}
    steps ROWS N        executes N steps and answers with the seconds of one, from one meeting of all ranks to the next

Rank 0 answers; whatever else a library prints goes to standard error."""
import ctypes
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from safetensors import safe_open

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
PROCESS = ctypes.CDLL(None)
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Record:
    """What Piper's rank of the same number started from and found."""

    def __init__(self, folder):
        with safe_open(f"{folder}/rank{RANK}.safetensors", "pt") as file:
            self.loss = float(file.metadata()["loss"])
            self.tensors = {name: file.get_tensor(name) for name in file.keys()}

    def errors(self, found, loss):
        """Of every tensor found, the norm of the difference over the norm; the worst."""
        worst = {"loss": abs(loss - self.loss) / max(abs(self.loss), 1e-30) if self.loss else 0.0, "gradient": 0.0, "tensor": ""}
        for name, value in found.items():
            expected = self.tensors[name]
            error = float((value.reshape(expected.shape) - expected).norm() / expected.norm())
            if not error <= worst["gradient"]:  # not a number is the worst
                worst.update(gradient=error, tensor=f"rank {RANK}: {name}")
        return worst


def of_all_ranks(worst):
    gathered = [None] * WORLD
    dist.all_gather_object(gathered, worst)
    largest = max(gathered, key=lambda one: one["gradient"])
    return {**largest, "loss": max(one["loss"] for one in gathered)}


def serve(make, read=Record):
    """`make(rows, record)` gives an object with step() and results() -> (tensors by name, loss), which executes a step, too; the record
    is what `read` makes of the folder."""
    torch.set_num_threads(1)
    if hasattr(PROCESS, "peak_reset"):  # peak_malloc.c is loaded: the libraries are no part of it
        PROCESS.peak_reset()
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    cases = {}
    for line in sys.stdin:
        what, rows, argument = line.split()
        if what == "check":
            record = read(argument)
            cases[rows] = make(int(rows), record)
            answer = json.dumps(of_all_ranks(record.errors(*cases[rows].results())))
        else:
            answer = f"{seconds_of(cases[rows].step, int(argument)):.9f}"
        if RANK == 0:
            print(answer, file=ANSWERS, flush=True)
    dist.barrier()


def seconds_of(step, count):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        step()
    dist.barrier()
    return (time.perf_counter() - start) / count
