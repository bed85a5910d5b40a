#!/usr/bin/env python3
"""The sides of a bench in the emulated network of scripts/lab (tests/opponents/emulated.py): each rank in a place of its own, what a step
sends counted where it passes, also of programs that say nothing of where they connect from; and what scripts/bench_expert_parallel --lab
refuses. Needs no torch; skipped where the lab cannot run (it says why)."""
import os
import pathlib
import subprocess
import sys

from switches import skip

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "opponents"))
import emulated  # noqa: E402
import rounds  # noqa: E402

PIPER = os.environ["PIPER"]
FABRIC = pathlib.Path(PIPER).parent / "piper_fabric"
BENCH = ROOT / "scripts" / "bench_expert_parallel"
NUM_BYTES = 300_000
# Every rank but the first connects to it, without a word about its own address, and sends it what it is asked to.
RANK = f"""
import os, socket, sys
rank, size, meeting = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    ready = socket.create_server(meeting)
    peers = [ready.accept()[0] for _ in range(size - 1)]
else:
    while True:
        try:
            peers = [socket.create_connection(meeting)]
            break
        except OSError:
            pass
for line in sys.stdin:
    count = int(line.split()[-1]) * {NUM_BYTES}
    if rank == 0:
        for peer in peers:
            peer.recv(count, socket.MSG_WAITALL)
            peer.sendall(b"got")
        print(0.5, flush=True)
    else:
        peers[0].sendall(bytes(count))
        peers[0].recv(3)
"""


def totals(network):
    return {link["name"]: link["bytes"] for link in network.lab.carried()}


def carries(bytes_found, expected, what):
    assert expected <= bytes_found <= 1.1 * expected, (what, bytes_found, expected)  # heads, acknowledgements


def counts():
    """2 nodes of 2 ranks: ranks 1, 2 and 3 send to rank 0, the first of them within the node."""
    try:
        network = emulated.Network("--nodes", 2, "--ranks", 2, "--nic-rate", 100, "--fabric", FABRIC, "--exact")
    except emulated.LAB.Skip as reason:
        skip(reason)
    with network:
        side = rounds.Side("senders", network.commands([sys.executable, "-c", RANK]), [rounds.texts(of_rank) for of_rank in network.torch_environments()], network)
        try:
            side.ask("ready", 1, 1)
            before = totals(network)
            assert side.seconds("steps", 1, 2) == 0.5
            after = totals(network)
        finally:
            side.end()
        sent = {name: after[name] - before.get(name, 0) for name in after}
        carries(sent["rank 1 out"], 2 * NUM_BYTES, "the port of a rank that sends within its node")
        carries(sent["node 1 nic 0 up"], 2 * 2 * NUM_BYTES, "the NIC of the two that send to another node")
        (of_step,) = network.carried["senders"]
        carries(max(of_step.values()), 2 * NUM_BYTES, "a step, of which there were two")
        assert network.nic_seconds(12.5e6) == 1
    assert not [name for name in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.splitlines() if name.startswith(network.lab.prefix)]
    print("what ranks send is counted at their ports and NICs" + (f" (measurement refused: {network.refused})" if network.refused else ""))


def prices():
    """`piper moe` on the network's own description: half of the bytes between the nodes, where a tp group sends each row once."""
    network = emulated.Network("--nodes", 2, "--ranks", 2, "--nic-rate", 50, "--fabric", FABRIC, "--exact")
    model = {"model_type": "mixtral", "hidden_size": 512, "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 8,
             "intermediate_size": 1024, "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 256}
    found = network.price(PIPER, model, 1e11, "--tp", 2, "--etp", 2, "--ep", 2, "--sequence", 512)
    assert found["plain"]["bytes_between_nodes"] == 2 * found["monta-o1"]["bytes_between_nodes"] == 4 * 512 * 2 * 512 * 4 / 2, found
    assert found["monta-o1"]["seconds"] < found["plain"]["seconds"] < 2 * found["monta-o1"]["seconds"], found


def refusals():
    for words, code, said in ((["--tp", 3], 2, "--tp is 3; allowed: a divisor of --ranks"), (["--tp", 2, "--lab"], 2, "--tp is 2 with --lab"),
                              (["--lab", "--nic-rate", 0], 2, "--nic-rate is 0; allowed: 0.001 to"),
                              (["--lab", "--piper", "none/piper"], 77, "skipped: piper_fabric is not built")):
        done = subprocess.run([str(BENCH), *map(str, words)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code and said in done.stdout + done.stderr, (words, done)
    done = subprocess.run(["setpriv", "--reuid", "65534", "--clear-groups", str(BENCH), "--lab"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 77 and done.stdout == "skipped: it needs root (network namespaces, TAP devices)\n", done


def main():
    counts()
    prices()
    refusals()


if __name__ == "__main__":
    main()
