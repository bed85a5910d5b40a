#!/usr/bin/env python3
"""A peer that dies, hangs or disagrees in the middle of exchanges, over threads, TCP and every MPI there is: all others name it, the
operation and its bytes within the time limit, whatever the algorithm. Usage: faulty_peers.py <process_probe> [ROUNDS [TRANSPORT...]]: 20 rounds of every
kind and transport take minutes, the test's few some seconds."""
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time

from switches import skip_case

PROBE = pathlib.Path(sys.argv[1]).resolve()
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 2
ONLY = sys.argv[3:]  # transports; all when none is named
ALGORITHMS = ["flat", "node-aware", "naive", "pairwise", "windowed", "bruck", "2d", "leader", "halo-printed", "halo-switch", "halo", "three-level"]
KINDS = ["dies", "hangs", "disagrees", "swaps", "other", "type"]  # the last four: about sizes, order, the operation, the type of elements
RANKS = 4
LIMIT = 12  # seconds, start and end of the processes included; the time limit of a wait is 2, of a heartbeat 1
# MPICH's launcher otherwise kills everybody as soon as one process has died, before the others can say anything.
MPI = {"openmpi": ["mpirun.openmpi", "--oversubscribe", "-n", str(RANKS)], "mpich": ["mpiexec.mpich", "-disable-auto-cleanup", "-n", str(RANKS)]}


def environment(**more):
    return dict(os.environ, PIPER_HEARTBEAT_SECONDS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                OMPI_MCA_btl="self,vader", ASAN_OPTIONS="detect_leaks=0", **more)


def threads(arguments):
    done = subprocess.run([PROBE, *arguments], capture_output=True, text=True, timeout=60, env=environment())
    return done.stdout + done.stderr


def mpirun(launcher):
    def run(arguments):
        done = subprocess.Popen([*launcher, PROBE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(),
                                start_new_session=True)
        try:
            said, _ = done.communicate(timeout=30)
        except subprocess.TimeoutExpired:  # an mpirun waits for a stopped process
            os.killpg(done.pid, 9)
            said, _ = done.communicate()
        return said
    return run


def tcp(arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [subprocess.Popen([PROBE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(
        PIPER_PROCESS=str(p), PIPER_NUM_PROCESSES=str(RANKS), PIPER_LOCAL_PROCESS=str(p), PIPER_NUM_LOCAL_PROCESSES=str(RANKS),
        PIPER_MASTER_ADDRESS="127.0.0.1", PIPER_MASTER_PORT=str(port), PIPER_SECRET="s" * 16)) for p in range(RANKS)]
    said = ""
    for p, process in enumerate(processes):
        if p != 1:
            said += process.communicate(timeout=30)[0]
    processes[1].kill()
    return said + processes[1].communicate()[0]


def problem(transport, kind, said):
    """What is wrong with what the ranks said, or nothing."""
    lines = [line for line in said.splitlines() if line.startswith("after ") and "the thread ends here" != line.split(" s ", 1)[1]]
    if "nothing went wrong" in said:
        return "it was not noticed"
    for line in lines:
        waited = float(line.split()[1])
        if waited > 7:
            return f"noticed after {waited} s only: {line}"
    named = [line for line in lines if re.search(r"rank 1\b", line) and re.search(r"'exchange \d'", line) and re.search(r"\d+ bytes", line)]
    # Who had done with the wrong rank may end without harm; and where one has named a dead process under MPICH, the launcher
    # kills the others, mostly before they can.
    if kind == "swaps" and not re.search(r"'exchange 4'", said):
        return "the exchange of the other side is not shown"
    if kind == "other" and "sum for exchange 3" not in said:
        return "the operation of the other side is not shown"
    if kind == "type" and not re.search(r"sends \d+ bytes.* receives \d+ bytes", said):
        return "the sizes of both sides are not shown"
    others = 1 if kind not in ("dies", "hangs") or transport == "mpich" else 3
    if len(named) < others:
        return f"{len(named)} of {others} ranks named rank 1, the exchange and its bytes"
    return ""


def killed_before_a_word(said):
    """MPICH's launcher kills who is left as soon as one process is gone, now and then before any of them has read of it."""
    return "YOUR APPLICATION TERMINATED" in said and not any(line.startswith("after ") for line in said.splitlines())


def main():
    transports = {"threads": threads, "tcp": tcp}
    for name, launcher in MPI.items():
        if shutil.which(launcher[0]) and (PROBE.parent / f"piper_mpi_{name}.so").exists():
            transports[name] = mpirun(launcher)
        else:
            skip_case(name, f"{launcher[0]} or its plug-in is not there")
    failed = 0
    for transport, run in transports.items():
        if ONLY and transport not in ONLY:
            continue
        for kind in KINDS:
            good, longest = 0, 0.0
            for i in range(ROUNDS):
                algorithm = ALGORITHMS[(i * (5 if ROUNDS < len(ALGORITHMS) else 1) + KINDS.index(kind)) % len(ALGORITHMS)]
                started = time.monotonic()
                said = run(["fault", kind, algorithm, str(RANKS)])
                seconds = time.monotonic() - started
                wrong = problem(transport, kind, said)
                for _ in range(3):
                    if not (wrong and transport == "mpich" and kind == "dies" and killed_before_a_word(said)):
                        break
                    print(f"{transport}, a peer that {kind}, {algorithm}: its launcher killed the others before a word; once more")
                    said = run(["fault", kind, algorithm, str(RANKS)])
                    wrong = problem(transport, kind, said)
                if not wrong and transport in ("threads", "tcp") and seconds > LIMIT:
                    wrong = f"took {seconds:.1f} s"
                if wrong:
                    print(f"{transport}, a peer that {kind}, {algorithm}: {wrong}\n{said}")
                good += not wrong
                longest = max(longest, seconds)
            print(f"{transport}: a peer that {kind}: named {good} of {ROUNDS} times, the longest run {longest:.1f} s", flush=True)
            failed += ROUNDS - good
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
