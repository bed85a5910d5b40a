"""Two processes of torch.distributed over gloo exchange equal parts with each other; prints {"bytes a pair": seconds}.

usage: alltoall_gloo.py RANK SIZE PORT ROUNDS BYTES...
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist


def main():
    rank, size, port, rounds = map(int, sys.argv[1:5])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    medians = {}
    for count in map(int, sys.argv[5:]):
        sent = torch.full((size * count,), rank, dtype=torch.uint8)
        received = torch.zeros_like(sent)
        repeats = max(3, min(200, (8 << 20) // (count * size)))
        seconds = []
        for _ in range(rounds + 1):  # the first warms up
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(repeats):
                dist.all_to_all_single(received, sent)
            seconds.append((time.perf_counter() - begin) / repeats)
        assert received.view(size, count).float().mean(1).tolist() == list(range(size))
        medians[count] = statistics.median(seconds[1:])
    if rank == 0:
        print(json.dumps(medians))
    dist.destroy_process_group()


main()
