#!/usr/bin/env python3
"""`piper bench alltoall`: every algorithm brings the right bytes under every load, on threads, over TCP and over MPI where it is."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PIPER = os.environ["PIPER"]
# MPI libraries leave memory behind that LeakSanitizer would report.
MPI = {"ASAN_OPTIONS": "detect_leaks=0", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "self,vader"}
KEYS = {"algorithm", "transport", "bytes_per_pair", "seconds", "limit_seconds", "predicted_seconds", "wrong"}


def run(*words, code=0):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, check=False,
                          env={**os.environ, **MPI})
    assert done.returncode == code, done
    return done


def points(transport, *words):
    told = json.loads(run(*words, "--json", "--seconds", 1, "--rounds", 1).stdout)
    assert told["wrong"] == 0, told
    for point in told["points"]:
        assert KEYS <= set(point) and point["transport"] == transport and point["wrong"] == 0 and point["seconds"] > 0, point
    return told["points"]


def worlds():
    yield "local", [PIPER, "bench", "alltoall", "--ranks", 4]
    yield "tcp", [PIPER, "launch", "-n", 4, "bench", "alltoall"]
    plugins = pathlib.Path(PIPER).parent
    if shutil.which("mpirun.openmpi") and (plugins / "piper_mpi_openmpi.so").exists():
        yield "mpi", ["mpirun.openmpi", "--oversubscribe", "-n", 4, PIPER, "bench", "alltoall"]


def limits():
    """Among threads the limit is a plain copy: more bytes never take less, and 64 times as many take longer."""
    seconds = [point["limit_seconds"] for point in points("local", PIPER, "bench", "alltoall", "--ranks", 4, "--algorithms", "flat",
                                                          "--pair-bytes", "64,256,1K,4K,16K,64K")]
    assert seconds == sorted(seconds) and seconds[0] > 0 and seconds[-1] > 2 * seconds[1], seconds


def refusals():
    for flags, said in ((["--algorithms", "hallo"], "--algorithms names 'hallo'; allowed: flat"),
                        (["--algorithms", "bruck:4K"], "a size behind halo"),
                        (["--pair-bytes", "-3"], "--pair-bytes is '-3'"),
                        (["--algorithms", "halo:0"], "--algorithms halo:0 is '0'"),
                        (["--load", "drift:1"], "allowed here: uniform, hot-rank:F, zipf:S or trace:FILE"),
                        (["--plot", "nowhere/x.svg"], "--plot: is nowhere/x.svg; allowed: a file in a folder that exists"),
                        (["--cluster", "nowhere"], "nowhere")):
        done = run(PIPER, "bench", "alltoall", *flags, code=2)
        assert said in done.stderr and "[---" not in done.stderr and not done.stdout, done


def processes(*words_of_each):
    """One process a rank over TCP, each with words of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    n = len(words_of_each)
    return [subprocess.Popen([PIPER, "bench", "alltoall", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={
        **os.environ, "PIPER_PROCESS": str(p), "PIPER_NUM_PROCESSES": str(n), "PIPER_LOCAL_PROCESS": str(p), "PIPER_NUM_LOCAL_PROCESSES": str(n),
        "PIPER_MASTER_ADDRESS": "127.0.0.1", "PIPER_MASTER_PORT": str(port), "PIPER_SECRET": "s" * 16, "PIPER_HEARTBEAT_SECONDS": "2"})
            for p, words in enumerate(words_of_each)]


def different_options():
    words = ["--pair-bytes", 64, "--seconds", 1, "--algorithms"]
    for process in processes([*words, "halo"], [*words, "2d"]):
        _, said = process.communicate(timeout=60)
        assert process.returncode == 2 and "--algorithms is '2d' on rank 1; allowed: the same on all, 'halo' on rank 0" in said, said


def lost_peers():
    """A rank that is killed or stopped in the middle: the others say in which exchange, and how large it was."""
    words = ["--pair-bytes", "1M", "--seconds", 60, "--rounds", 1000, "--repeats", 1000, "--algorithms", "halo"]
    for what, said_of_it in ((signal.SIGKILL, "died: its connection was lost in"), (signal.SIGSTOP, "hangs: no heartbeat")):
        ranks = processes(words, words, words)
        time.sleep(5)  # until they are at it, on a busy machine too
        ranks[1].send_signal(what)
        said = [ranks[p].communicate(timeout=60)[1] for p in (0, 2)]
        ranks[1].kill()
        ranks[1].communicate()
        for text in said:
            assert said_of_it in text and "'halo, 1.00 MiB a pair'" in text and "step" not in text, text


def deduplicated():
    words = ["bench", "dedup", "--tokens", 40, "--row-bytes", 512, "--experts", 16, "--top-k", 4, "--load", "zipf:0.8", "--seconds", 1, "--rounds", 1,
             "--json"]
    commands = [("threads", 1, [PIPER, *words, "--ranks", 4]), ("tcp", 1, [PIPER, "launch", "-n", 4, *words])]
    if any(transport == "mpi" for transport, _ in worlds()):
        place = "PIPER_NODE=n$((OMPI_COMM_WORLD_RANK / 2)) exec " + " ".join(map(str, [PIPER, *words]))
        commands.append(("mpi, two nodes", 2, ["mpirun.openmpi", "--oversubscribe", "-n", 4, "sh", "-c", place]))
    for name, nodes, command in commands:
        done = json.loads(run(*command).stdout)
        assert done["nodes"] == nodes and len(done["exchanges"]) == 4, (name, done)
        assert all(one["wrong"] == 0 and one["seconds"] > 0 for one in done["exchanges"]), (name, done)
        assert 1 <= done["distinct_nodes"] <= nodes and done["k_over_distinct_nodes"] >= 2, (name, done)
    for flags, said in ((["--experts", "63"], "--experts is 63; allowed: a multiple of the 4 ranks"),
                        (["--top-k", "9", "--experts", "8"], "--top-k is 9; allowed: at most --experts"),
                        (["--load", "hot-rank:3"], "allowed: uniform, zipf:S or trace:FILE")):
        done = run(PIPER, "bench", "dedup", *flags, code=2)
        assert said in done.stderr and not done.stdout, done


def main():
    limits()
    deduplicated()
    different_options()
    lost_peers()
    for transport, words in worlds():
        names = {point["algorithm"] for point in points(transport, *words, "--pair-bytes", "0,1,3000,300K")}
        assert len(names) >= 10 and ("MPI_Alltoallv" in names) == (transport == "mpi"), names
        for load in ("hot-rank:4", "zipf:1.2"):
            points(transport, *words, "--pair-bytes", "1000", "--load", load)
        print(f"{transport}: {len(names)} algorithms, {transport} bytes are right")
    with tempfile.TemporaryDirectory() as folder:
        picture, trace = pathlib.Path(folder) / "a.svg", pathlib.Path(folder) / "trace.json"
        trace.write_text(json.dumps({"steps": [[[5, 1, 0, 2, 9, 1, 1, 1]]]}))
        text = run(PIPER, "bench", "alltoall", "--ranks", 4, "--pair-bytes", "1K,4K", "--load", f"trace:{trace}", "--seconds", 1,
                   "--rounds", 1, "--plot", picture).stdout
        assert "algbw" in text and "# Wrong bytes          : 0 OK" in text, text
        assert picture.read_text().startswith("<!-- written by piper -->\n<svg") and "three-level" in picture.read_text()
    refusals()


if __name__ == "__main__":
    main()
