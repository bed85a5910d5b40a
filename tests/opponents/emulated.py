"""The emulated network of scripts/lab as the place where the ranks of Piper and of its opponents run: a rank in its own namespace, and from
the first measurement on with the real-time priority of the lab's ranks. All sides share one network and wait while another one runs, so that what its links carry in the
meantime is that side's."""
import contextlib
import importlib.machinery
import importlib.util
import json
import pathlib
import secrets
import statistics
import subprocess
import sys
import tempfile

from rounds import ROOT

UNUSED = ["--", "true"]  # scripts/lab asks for a command


def load_lab():
    """scripts/lab, which has no .py in its name."""
    loader = importlib.machinery.SourceFileLoader("piper_lab", str(ROOT / "scripts" / "lab"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("piper_lab", loader))
    was, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = was
    return module


LAB = load_lab()


class Network:
    """What rounds.Loopback is for this machine alone. Throws LAB.Skip where the lab cannot run."""
    has_mpi = False  # Open MPI's ranks spin: on two cores they hold up the network itself

    def __init__(self, *words):
        """`words`: the flags of scripts/lab."""
        self.flags = LAB.arguments([*map(str, words), *UNUSED])
        LAB.check_machine(self.flags)
        self.lab = LAB.Lab(self.flags)
        self.ranks = self.lab.size
        self.num_sides = 0
        self.carried = {}  # by side: bytes of a step over each NIC, each way; one entry a measurement
        self.refused = ""  # why the figures are worthless

    def __enter__(self):
        try:
            self.softnet = LAB.softnet_drops()
            self.lab.build()
        except BaseException:
            self.lab.close()
            raise
        return self

    def __exit__(self, failure, *_):
        try:
            if failure is None:
                self.refused = ", ".join(LAB.spoiled(self.flags, self.lab.report(LAB.softnet_drops() - self.softnet)))
        finally:
            self.lab.close()

    # -- for rounds.Side ----------------------------------------------------------------------------------------------------

    def commands(self, command):
        return [self.lab.inside(rank, command) for rank in range(self.ranks)]

    def port(self):
        """Where the ranks of one more side meet, in the namespace of rank 0. None is the lab's own port, whose frames go first."""
        self.num_sides += 1
        return LAB.PORT + self.num_sides

    def piper_environments(self):
        port, secret = self.port(), secrets.token_hex(16)
        return [self.lab.environment(rank, secret, port) for rank in range(self.ranks)]

    def torch_environments(self):
        port, per_node = self.port(), self.flags.ranks
        return [{"WORLD_SIZE": self.ranks, "LOCAL_WORLD_SIZE": per_node, "RANK": rank, "LOCAL_RANK": rank % per_node,
                 "MASTER_ADDR": self.lab.address(0), "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": self.lab.device(rank)} for rank in range(self.ranks)]

    @staticmethod
    def raise_priority(sides):
        """Of all their threads, once they have started: a thread at this priority keeps its core until it waits, so that ranks which load
        their libraries would keep those who wait for them off the cores until they give up."""
        for side in sides:
            for process in side.processes:
                LAB.quiet("chrt", "-a", "-f", "-p", LAB.RANK_PRIORITY, process.pid)

    @contextlib.contextmanager
    def counting(self, name, count):
        before = self.nic_bytes()
        yield
        self.carried.setdefault(name, []).append({link: (total - before.get(link, 0)) / count for link, total in self.nic_bytes().items()})

    def nic_bytes(self):
        return {link["name"]: link["bytes"] for link in self.lab.carried() if " nic " in link["name"]}

    # -- what the network says of a comparison ------------------------------------------------------------------------------

    def nic_seconds(self, num_bytes):
        return num_bytes / (self.flags.nic_rate * 1e6 / 8)

    def add_to(self, result):
        """Of each side of rounds.compare: bytes of a step over the busiest NIC, heads of frames among them, the seconds that these alone
        take, and of how much of the step that is."""
        for name, side in result["sides"].items():
            busiest = statistics.median(max(of_step.values()) for of_step in self.carried[name])
            side.update(nic_bytes=round(busiest), nic_seconds=self.nic_seconds(busiest),
                        nic_part=self.nic_seconds(busiest) / side["seconds"]["median"])
        f = self.flags
        result["network"] = {"nodes": f.nodes, "ranks_per_node": f.ranks, "nics": f.nics, "nic_megabits_per_second": f.nic_rate, "inner_ratio": f.inner_ratio,
                             "nic_latency_seconds": f.nic_latency * 1e-6, "inner_latency_seconds": f.inner_latency * 1e-6}

    def price(self, program, model, flops_per_s, *axes):
        """What `piper moe` says of every schedule of the model's mixture layer here, where a rank computes that fast: by the schedule's name."""
        cluster = self.lab.cluster()
        # The speed is of a rank beside all others, so that no core is shared any more.
        cluster.update(cores_per_node=self.flags.ranks, compute={"fp32": {"peak_flops_per_second": flops_per_s, "gemm_efficiency": 1.0}})
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for file, value in (("cluster.json", cluster), ("config.json", model)):
                (folder / file).write_text(json.dumps(value))
            command = [program, "moe", "--model", folder / "config.json", "--cluster", folder / "cluster.json", "--precision", "fp32", "--json", *axes]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"piper moe: {done.stderr.strip()}")
        return {of["schedule"]: of for of in json.loads(done.stdout)["schedules"]}


def print_table(title, result):
    """As rounds.print_table, for a network: what decides is what NICs carry."""
    network = result["network"]
    print(f"{title}; {network['nodes']} nodes of {network['ranks_per_node']}, NICs of {network['nic_megabits_per_second']:g} Mbit/s, ports within a node "
          f"{network['inner_ratio']:g} times that")
    print(f"  the limits: products alone {result['limit_seconds']['median'] * 1e3:.1f} ms; every row that leaves its node once over a NIC "
          f"{result['rows_once_seconds'] * 1e3:.1f} ms (as many rows for every expert)")
    print(f"  {'':34} {'ms':>9}  {'/ piper':18} {'MB a NIC':>9} {'NIC alone, ms':>14} {'of it':>7} {'by price':>9} {'worst gradient':>15}")
    for name, side in result["sides"].items():
        ratio = side["over_piper"]
        price = f"{side['priced_seconds'] * 1e3:9.1f}" if "priced_seconds" in side else " " * 9
        error = f"{side['errors']['gradient']:15.1e}" if "errors" in side else ""
        print(f"  {name:34} {side['seconds']['median'] * 1e3:9.1f}  {ratio['median']:.2f} ({ratio['lowest']:.2f}-{ratio['highest']:.2f})".ljust(66)
              + f"{side['nic_bytes'] / 1e6:9.2f} {side['nic_seconds'] * 1e3:14.1f} {side['nic_part'] * 100:5.0f} % {price} {error}".rstrip())
    if "priced_chunks" in result["sides"][result["piper"]]:
        chunks = result["sides"][result["piper"]]["priced_chunks"]
        print(f"  the choice by price: {result['piper']}" + (f", in {chunks} chunks" if chunks > 1 else ""))
