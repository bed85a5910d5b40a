#!/usr/bin/env python3
"""A mixture layer on one device, x + experts(norm(x)) forward and backward: `piper bench moe` against plain torch (a grouped product
where there is one, a loop over the experts) and against transformers' expert back ends where that is installed; in turn, medians. Piper's gradients of
weights in bf16 are kept in fp32 (main gradients), the others' in bf16.

usage: moe_device.py PIPER DEVICE fp32|bf16 TOKENS HIDDEN FFN EXPERTS TOP_K [ROUNDS]; prints JSON"""
import json
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

PIPER, DEVICE, PRECISION = sys.argv[1:4]
TOKENS, HIDDEN, FFN, EXPERTS, TOP_K = map(int, sys.argv[4:9])
ROUNDS = int(sys.argv[9]) if len(sys.argv) > 9 else 5
DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16}[PRECISION]


def wait():
    if DEVICE != "cpu":
        torch.cuda.synchronize()


def leaf(*shape, scale=0.02):
    return (torch.randn(*shape, device=DEVICE) * scale).to(DTYPE).requires_grad_()


class Layer:
    def __init__(self, form):
        torch.manual_seed(0)
        self.form = form
        self.norm = torch.ones(HIDDEN, device=DEVICE, dtype=DTYPE, requires_grad=True)
        self.router, self.gate_up, self.down = leaf(EXPERTS, HIDDEN), leaf(EXPERTS, 2 * FFN, HIDDEN), leaf(EXPERTS, HIDDEN, FFN)
        self.x, self.gradient = leaf(TOKENS, HIDDEN, scale=0.5), torch.rand(TOKENS, HIDDEN, device=DEVICE).to(DTYPE)

    def experts(self, rows, counts):
        if self.form == "grouped":
            ends = counts.cumsum(0, dtype=torch.int32)
            gate, up = torch._grouped_mm(rows, self.gate_up.transpose(1, 2), ends).chunk(2, dim=-1)
            return torch._grouped_mm(F.silu(gate) * up, self.down.transpose(1, 2), ends)
        outs = []
        for expert, part in enumerate(rows.split(counts.tolist())):
            gate, up = F.linear(part, self.gate_up[expert]).chunk(2, dim=-1)
            outs.append(F.linear(F.silu(gate) * up, self.down[expert]))
        return torch.cat(outs)

    def step(self):
        normed = F.rms_norm(self.x, (HIDDEN,), self.norm, 1e-6)
        weights, experts = torch.topk(F.softmax(F.linear(normed, self.router), dim=-1, dtype=torch.float32), TOP_K)
        weights = (weights / weights.sum(-1, keepdim=True)).to(DTYPE)
        order = torch.argsort(experts.flatten(), stable=True)
        counts = torch.bincount(experts.flatten(), minlength=EXPERTS)
        out = self.experts(normed[order // TOP_K], counts)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=DEVICE))
        (self.x + (out[back].view(TOKENS, TOP_K, HIDDEN) * weights.unsqueeze(-1)).sum(1)).backward(self.gradient)
        for tensor in (self.norm, self.router, self.gate_up, self.down, self.x):
            tensor.grad = None


class Transformers:
    def __init__(self, backend):
        from transformers.models.mixtral.configuration_mixtral import MixtralConfig
        from transformers.models.mixtral.modeling_mixtral import MixtralRMSNorm, MixtralSparseMoeBlock
        config = MixtralConfig(hidden_size=HIDDEN, intermediate_size=FFN, num_local_experts=EXPERTS, num_experts_per_tok=TOP_K, num_hidden_layers=1)
        config._experts_implementation = backend
        torch.set_default_dtype(DTYPE)
        with torch.device(DEVICE):
            self.modules = torch.nn.ModuleList([MixtralRMSNorm(HIDDEN), MixtralSparseMoeBlock(config)])
        torch.set_default_dtype(torch.float32)
        with torch.no_grad():
            for parameter in self.modules.parameters():
                torch.nn.init.normal_(parameter, 0.0, 0.02)
        self.x, self.gradient = leaf(1, TOKENS, HIDDEN, scale=0.5), torch.rand(1, TOKENS, HIDDEN, device=DEVICE).to(DTYPE)

    def step(self):
        norm, block = self.modules
        out = block(norm(self.x))
        (self.x + (out[0] if isinstance(out, tuple) else out)).backward(self.gradient)
        self.modules.zero_grad(set_to_none=True)
        self.x.grad = None


class Piper:
    def __init__(self):
        self.process = subprocess.Popen([PIPER, "bench", "moe", "--serve", "--device", DEVICE, "--precision", PRECISION, "--hidden", str(HIDDEN), "--ffn", str(FFN)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self):
        self.process.stdin.write(f"{TOKENS} {EXPERTS} {TOP_K}\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        if not said:
            raise RuntimeError(f"piper bench moe ended with {self.process.wait()}")
        return float(said)


def seconds_of(side):
    wait()
    start = time.process_time() if DEVICE == "cpu" else time.perf_counter()
    side.step()
    wait()
    return (time.process_time() if DEVICE == "cpu" else time.perf_counter()) - start


def dense_flops_per_second():
    """Of one large product of two matrices: what the device has for dense work."""
    size, rounds = (1024, 3) if DEVICE == "cpu" else (8192, 20)
    a, b = torch.rand(size, size, device=DEVICE).to(DTYPE), torch.rand(size, size, device=DEVICE).to(DTYPE)
    torch.mm(a, b)
    wait()
    start = time.perf_counter()
    for _ in range(rounds):
        torch.mm(a, b)
    wait()
    return 2 * size**3 * rounds / (time.perf_counter() - start)


def main():
    torch.set_num_threads(1)
    dense = dense_flops_per_second()
    others, left_out = {}, {}
    makers = {"torch, grouped": lambda: Layer("grouped"), "torch, one by one": lambda: Layer("loop")}
    makers.update({f"transformers, {backend}": lambda backend=backend: Transformers(backend) for backend in ("grouped_mm", "eager")})
    for name, make in makers.items():
        try:
            others[name] = make()
            for _ in range(2):
                seconds_of(others[name])
        except Exception as error:  # not installed, no such product for this type, no memory
            others.pop(name, None)
            left_out[name] = f"{type(error).__name__}: {str(error)[:120]}"
    sides = {name: (lambda side=side: seconds_of(side)) for name, side in others.items()}
    try:
        piper = Piper()
        # A clock that was idle takes a while to rise.
        end = time.monotonic() + (0 if DEVICE == "cpu" else 0.3)
        piper.seconds()
        while piper.seconds() and time.monotonic() < end:
            pass
        sides = {"piper": piper.seconds, **sides}
    except (RuntimeError, OSError) as error:
        left_out["piper"] = str(error)
    times = {name: [] for name in sides}
    for number in range(ROUNDS):
        for name in times if number % 2 == 0 else reversed(times):
            times[name].append(sides[name]())
    if "piper" not in sides or not others:
        print(json.dumps({"milliseconds": {name: 1e3 * statistics.median(of) for name, of in times.items()}, "ratio": None, "left_out": left_out,
                          "dense_flops_per_second": dense}, indent=1))
        return
    best = min(others, key=lambda name: statistics.median(times[name]))
    print(json.dumps({"milliseconds": {name: 1e3 * statistics.median(of) for name, of in times.items()}, "fastest_of_the_others": best,
                      "ratio": statistics.median(b / p for b, p in zip(times[best], times["piper"])), "left_out": left_out,
                      "dense_flops_per_second": dense}, indent=1))


if __name__ == "__main__":
    main()
