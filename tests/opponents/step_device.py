#!/usr/bin/env python3
"""A training step of a whole mixture model on one device: `piper train` against transformers with torch.optim.AdamW (fused), as it is and under
torch.compile. In bf16 Piper keeps fp32 masters, and so do they: fp32 weights under autocast, or bf16 weights beside fp32 masters (their gradients of
several micro-batches are then added in bf16, Piper's in fp32). Their weights in bf16 alone (half of the optimizer's bytes, and another result) are
timed too and are not what the ratio is to. First Piper runs, then each of the others, on weights drawn at random and
windows of the same text; medians of the steps behind the first few. Forms that the seconds do not suffice for, compilation and steps, are named
with that reason.

usage: step_device.py PIPER DEVICE fp32|bf16 CLUSTER CONFIG SEQUENCE MICRO_BATCH BATCH STEPS [SECONDS]; prints a line of JSON after Piper and after
each of the others, the last of which says all. Without transformers the ratio is null."""
import contextlib
import gc
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import torch

PIPER, DEVICE, PRECISION, CLUSTER, CONFIG = sys.argv[1:6]
SEQUENCE, MICRO_BATCH, BATCH, STEPS = map(int, sys.argv[6:10])
END = time.monotonic() + (float(sys.argv[10]) if len(sys.argv) > 10 else 600)
LEAST_SECONDS = 20  # that a form gets where there are as many
WARM_STEPS = 3


def wait():
    if DEVICE != "cpu":
        torch.cuda.synchronize()


TEXT = "".join(f"{n} times {n + 3} is {n * (n + 3)}. " for n in range(SEQUENCE * BATCH // 8 + 100))


def piper(folder):
    """Milliseconds of the median step, its MFU, peak bytes, predicted milliseconds."""
    text = folder / "text.txt"
    text.write_text(TEXT)
    run = folder / "run"
    try:
        done = subprocess.run([PIPER, "train", "--model", CONFIG, "--data", text, "--cluster", CLUSTER, "--device", DEVICE, "--precision", PRECISION, "--pp", "1", "--dp", "1",
                               "--sequence", str(SEQUENCE), "--global-batch", str(BATCH), "--micro-batch", str(MICRO_BATCH), "--steps", str(STEPS + WARM_STEPS), "--clip-norm", "0",
                               "--run", run, "--json"], capture_output=True, text=True, timeout=max(1, END - time.monotonic()))
    except subprocess.TimeoutExpired as late:
        sys.exit(f"piper train was not ready after {late.timeout:.0f} s")
    if done.returncode:
        sys.exit(f"piper train ended with {done.returncode}: {done.stderr[-500:]}")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][WARM_STEPS:]
    said = json.loads(done.stdout[done.stdout.index("{"):])
    comparison = said["comparison"]
    return {"milliseconds": 1e3 * statistics.median(line["step_seconds"] for line in lines), "mfu": statistics.median(line["mfu"] for line in lines),
            "peak_bytes": max(line["peak_bytes"] for line in lines), "predicted_milliseconds": 1e3 * comparison["predicted_step_seconds"] if comparison.get("predicted_step_seconds") else None,
            "comparison": comparison, "host_waits": lines[-1].get("host_waits"), "kernels": said.get("kernels", [])}


class Opponent:
    def __init__(self, backend, weights, compiled):
        from transformers import AutoConfig, AutoModelForCausalLM
        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(CONFIG)
        config._experts_implementation = backend
        with torch.device(DEVICE):
            dtype = torch.float32 if weights == "fp32" else torch.bfloat16
            self.model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
        self.model.train()
        self.forward = torch.compile(self.model) if compiled else self.model
        self.autocast = torch.autocast(DEVICE.split(":")[0], torch.bfloat16) if PRECISION == "bf16" and dtype == torch.float32 else contextlib.nullcontext()
        self.weights = list(self.model.parameters())
        self.masters = [weight.detach().float() for weight in self.weights] if weights == "masters" else None
        self.optimizer = torch.optim.AdamW(self.masters or self.weights, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        text = torch.tensor(list(TEXT.encode()), device=DEVICE)
        self.tokens = torch.stack([text[i * SEQUENCE:(i + 1) * SEQUENCE + 1] for i in range(BATCH)])

    def step(self):
        self.model.zero_grad(set_to_none=True)
        for tokens in self.tokens.split(MICRO_BATCH):
            with self.autocast:
                logits = self.forward(tokens[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
            (loss / (BATCH * SEQUENCE)).backward()
        if self.masters:
            for master, weight in zip(self.masters, self.weights):
                master.grad = None if weight.grad is None else weight.grad.float()
        self.optimizer.step()
        if self.masters:
            with torch.no_grad():
                torch._foreach_copy_(self.weights, self.masters)

    def milliseconds(self):
        for _ in range(WARM_STEPS):
            self.step()
        times = []
        for _ in range(STEPS):
            wait()
            begin = time.perf_counter()
            self.step()
            wait()
            times.append(time.perf_counter() - begin)
        return 1e3 * statistics.median(times)


def too_long(*_):
    raise TimeoutError("not ready in time")


def opponents(found, failed, say):
    """Adds milliseconds by name, and why others have none."""
    if PRECISION == "bf16":  # under autocast the grouped product would be one of fp32, a loop for which the host waits
        forms = [(backend, weights, compiled) for compiled in (False, True) for backend, weights in (("grouped_mm", "masters"), ("eager", "fp32"))]
        forms += [("eager", "masters", False), ("grouped_mm", "alone", False), ("grouped_mm", "alone", True)]
    else:
        forms = [(backend, "fp32", compiled) for compiled in (False, True) for backend in ("grouped_mm", "eager")]
    signal.signal(signal.SIGALRM, too_long)
    said = {"fp32": "", "masters": ", bf16 beside fp32 masters", "alone": ", weights in bf16 alone"}
    for backend, weights, compiled in forms:
        name = f"transformers {backend}{', compiled' if compiled else ''}{said[weights]}"
        left = END - time.monotonic()
        try:
            if left < 1:
                too_long()
            signal.alarm(int(max(1, min(left, max(LEAST_SECONDS, left / 2)))))
            found[name] = Opponent(backend, weights, compiled).milliseconds()
        except Exception as error:  # a back end that this device or type has not, or a compiler's
            failed[name] = f"{type(error).__name__}: {str(error)[:150]}"
        finally:
            signal.alarm(0)
        gc.collect()
        torch._dynamo.reset()
        if DEVICE != "cpu":
            torch.cuda.empty_cache()
        say()


def main():
    with tempfile.TemporaryDirectory() as folder:
        own = piper(pathlib.Path(folder))
    found, failed = {}, {}

    def say():
        equal = {name: ms for name, ms in found.items() if not name.endswith("alone")}
        best = min(equal, key=equal.get) if equal else None
        print(json.dumps({"piper": own, "milliseconds": {"piper": own["milliseconds"], **found}, "failed": failed, "best": best,
                          "ratio": equal[best] / own["milliseconds"] if best else None}), flush=True)

    say()
    opponents(found, failed, say)


if __name__ == "__main__":
    main()
