#!/usr/bin/env python3
"""The benches of several ranks compute what they say: `piper bench pipeline` and `piper bench moe` on threads, on the processes of
`piper launch` and of Open MPI, each step against torch's autograd over the whole model in one process; and the lines of --serve."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

from switches import skip, skip_case

try:
    import torch
    import torch.nn.functional as F
    from safetensors import safe_open
except ImportError as error:
    skip(error)

PIPER = os.environ.get("PIPER", "build/release/piper")
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "self,vader"}
TOLERANCE = 1e-5  # of a tensor's norm
LAYERS, MICRO_BATCHES, ROWS, HIDDEN = 8, 5, 6, 48
PIPELINE = ["bench", "pipeline", "--hidden", HIDDEN, "--linear-layers", LAYERS, "--micro-batches", MICRO_BATCHES]
TOKENS, EXPERTS, TOP_K, FFN = 40, 4, 2, 24
MIXTURE = ["bench", "moe", "--tokens", TOKENS, "--hidden", HIDDEN, "--ffn", FFN, "--experts", EXPERTS, "--top-k", TOP_K]


def worlds():
    yield "threads", [PIPER], ["--ranks", 2]
    yield "launch", [PIPER, "launch", "-n", 2], []
    if shutil.which("mpirun.openmpi") and (pathlib.Path(PIPER).resolve().parent / "piper_mpi_openmpi.so").exists():
        yield "Open MPI", ["mpirun.openmpi", "--oversubscribe", "-n", 2, PIPER], []
    else:
        skip_case("ranks under Open MPI", "mpirun.openmpi or its plug-in is not there")


def run(*words, **more):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, env=ENVIRONMENT, timeout=120, **more)


def records(folder, num_ranks=2):
    """(tensors by name, loss) of every rank."""
    found = []
    for rank in range(num_ranks):
        with safe_open(f"{folder}/rank{rank}.safetensors", "pt") as file:
            found.append(({name: file.get_tensor(name) for name in file.keys()}, float(file.metadata()["loss"])))
    return found


def require_close(what, found, expected):
    error = float((found - expected).norm() / expected.norm())
    assert error <= TOLERANCE, f"{what}: differs by {error:.1e} of its norm"


def check_pipeline(name, folder):
    ranks = records(folder)
    tensors = {key: value for of_rank, _ in ranks for key, value in of_rank.items()}
    weights = [tensors[f"linear.{i}"].clone().requires_grad_() for i in range(LAYERS)]
    y = tensors["x"]
    assert y.shape == (MICRO_BATCHES * ROWS, HIDDEN), y.shape
    for weight in weights:
        y = F.linear(y, weight)
    loss = F.mse_loss(y, tensors["target"])
    loss.backward()
    assert abs(ranks[-1][1] - loss.item()) <= TOLERANCE * loss.item(), (ranks[-1][1], loss.item())
    for i, weight in enumerate(weights):
        assert (f"linear.{i}" in ranks[0][0]) == (i < LAYERS // 2), f"linear.{i} is on the wrong stage"
        require_close(f"{name}: linear.{i}", tensors[f"linear.{i}.gradient"], weight.grad)


def whole_experts(ranks, of, tp):
    """gate_up and down of all experts, from the ranks' parts: each holds a part of the width of gate, of up and of down."""
    groups = [ranks[first:first + tp] for first in range(0, len(ranks), tp)]
    gates_and_ups = [torch.cat([r[of["gate_up_proj"]].chunk(2, dim=1)[part] for r in group], dim=1) for group in groups for part in (0, 1)]
    gate_up = torch.cat([torch.cat(pair, dim=1) for pair in zip(gates_and_ups[::2], gates_and_ups[1::2])])
    return gate_up, torch.cat([torch.cat([r[of["down_proj"]] for r in group], dim=2) for group in groups])


def part_of_experts(gate_up, down, rank, num_ranks, tp):
    """What the rank holds of both."""
    experts, width = EXPERTS * tp // num_ranks, FFN // tp
    share = slice(rank // tp * experts, (rank // tp + 1) * experts)
    part = slice(rank % tp * width, (rank % tp + 1) * width)
    return torch.cat([half[share, part] for half in gate_up.chunk(2, dim=1)], dim=1), down[share, :, part]


def check_mixture(name, folder, num_ranks=2, tp=1):
    ranks = [tensors for tensors, _ in records(folder, num_ranks)]
    of = {key: next(n for n in ranks[0] if n.endswith(key)) for key in ("post_attention_layernorm.weight", "mlp.gate.weight", "gate_up_proj", "down_proj")}
    norm, router = (ranks[0][of[key]].clone().requires_grad_() for key in ("post_attention_layernorm.weight", "mlp.gate.weight"))
    gate_up, down = (whole.requires_grad_() for whole in whole_experts(ranks, of, tp))
    x = torch.cat([r["x"] for r in ranks[::tp]]).requires_grad_()  # which ranks of a tp group hold alike
    normed = F.rms_norm(x, (HIDDEN,), norm, 1e-6)
    weights, experts = torch.topk(F.softmax(normed @ router.T, dim=-1), TOP_K)
    weights = weights / weights.sum(-1, keepdim=True)
    y = x
    for e in range(EXPERTS):  # every expert sees every token; most with weight zero
        gate, up = (normed @ gate_up[e].T).chunk(2, dim=-1)
        y = y + (weights * (experts == e)).sum(-1, keepdim=True) * ((F.silu(gate) * up) @ down[e].T)
    y.backward(torch.cat([r["target"] for r in ranks[::tp]]))
    for rank, tensors in enumerate(ranks):
        mine = slice(rank // tp * TOKENS, (rank // tp + 1) * TOKENS)
        g_gate_up, g_down = part_of_experts(gate_up.grad, down.grad, rank, num_ranks, tp)
        for key, expected in (("y", y.detach()[mine]), ("x.gradient", x.grad[mine]), (of["post_attention_layernorm.weight"] + ".gradient", norm.grad),
                              (of["mlp.gate.weight"] + ".gradient", router.grad), (of["gate_up_proj"] + ".gradient", g_gate_up),
                              (of["down_proj"] + ".gradient", g_down)):
            require_close(f"{name}: rank {rank} {key}", tensors[key], expected)


def bench(folder, command, bench_words, flags):
    done = run(*command, *bench_words, *flags, "--rounds", 2, "--steps", 2, "--save", folder, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    return result[0] if isinstance(result, list) else result


def check_times(result):
    assert result["step_seconds"] > 0 and result["limit_seconds"] > 0, result
    assert result["lowest_step_over_limit"] <= result["step_over_limit"] <= result["highest_step_over_limit"], result


def tensor_parallel(folder):
    """Experts divided by tp, and by tp and ep, under every schedule."""
    schedules = [("plain", 1), ("chunked", 2), ("fastermoe", 2), ("parm-baseline", 1), ("parm-s1", 1), ("parm-s2", 2), ("monta-o1", 1), ("monta-o2", 3)]
    runs = [([PIPER], ["--ranks", num_ranks], num_ranks, schedule, chunks) for num_ranks in (2, 4) for schedule, chunks in schedules
            if schedule != "fastermoe" or num_ranks > 2]  # ranks of tp alone are no peers
    for command, flags, num_ranks, schedule, chunks in [*runs, ([PIPER, "launch", "-n", 4], [], 4, "plain", 1)]:
        of_run = pathlib.Path(folder) / f"{num_ranks}-{schedule}-{len(command)}"
        check_times(bench(of_run, command, [*MIXTURE, "--tp", 2, "--moe-schedule", schedule, "--moe-chunks", chunks], flags))
        check_mixture(f"{num_ranks} ranks, tp 2, {schedule}", of_run, num_ranks, 2)
    print("tensor-parallel experts are autograd's")


def serves(folder):
    lines = f"steps {ROWS} 2\nlimit {ROWS} 2\nsave {ROWS} {folder}\n"
    done = run(PIPER, "launch", "-n", 2, *PIPELINE, "--serve", input=lines)
    answers = done.stdout.split()
    assert done.returncode == 0 and len(answers) == 3 and answers[2] == "saved" and all(float(a) > 0 for a in answers[:2]), done
    check_pipeline("served", folder)
    done = run(PIPER, "launch", "-n", 2, *PIPELINE, "--serve", input="steps none\n")
    assert done.returncode == 2 and "steps none" in done.stderr and "allowed" in done.stderr, done


def passes():
    """The element-wise work of a layer: each pass has a time, and says how many bytes it has to move."""
    tokens, hidden, ffn, top_k, vocabulary = 32, 64, 16, 2, 128
    done = run(PIPER, "bench", "passes", "--tokens", tokens, "--hidden", hidden, "--ffn", ffn, "--top-k", top_k, "--vocabulary", vocabulary,
               "--precision", "bf16", "--rounds", 2, "--json")
    assert done.returncode == 0, done
    found = {one["name"]: one for one in json.loads(done.stdout)["passes"]}
    assert len(found) == 10 and all(one["seconds"] > 0 and one["of_copy"] > 0 for one in found.values()), found
    of_tokens, of_rows = 2 * tokens * hidden, 2 * tokens * top_k * hidden
    assert found["norm, backward"]["bytes"] == 3 * of_tokens and found["merge, backward"]["bytes"] == of_tokens + 2 * of_rows, found
    assert found["SwiGLU"]["bytes"] == 3 * 2 * tokens * top_k * ffn and found["AdamW"]["bytes"] == 30 * 3 * hidden * ffn, found
    assert "SwiGLU, backward" in run(PIPER, "bench", "passes", "--tokens", 1, "--hidden", 8, "--ffn", 8, "--rounds", 1).stdout


def refuses():
    for words, expected in ((["bench", "pipeline", "--linear-layers", 6], ["--linear-layers is 6", "multiple of 4"]),
                            (["bench", "pipeline", "--schedule", "zero"], ["--schedule", "zero", "gpipe"]),
                            (["bench", "pipeline", "--rows", 0], ["--rows is 0"]),
                            (["bench", "moe", "--experts", 4, "--ranks", 3], ["--ranks is 3", "divisor"]),
                            (["bench", "moe", "--experts", 4, "--ranks", 4, "--tp", 3], ["--tp is 3", "divisor of --ranks"]),
                            (["bench", "moe", "--ranks", 2, "--moe-schedule", "parm-s1"], ["--moe-schedule is parm-s1", "--tp 1"]),
                            (["bench", "moe", "--ranks", 2, "--tp", 2, "--moe-chunks", 2], ["--moe-chunks is 2", "plain"]),
                            (["bench", "passes", "--tokens", 0, "--precision", "fp8"], ["--tokens is 0", "--precision is 'fp8'"]),
                            (["bench", "passes", "--device", "cuda:7"], ["cuda"]),
                            (["launch", "-n", 2, "bench", "sim"], ["bench sim", "allowed: train, eval, bench alltoall, bench dedup, bench pipeline, bench moe"])):
        done = run(PIPER, *words)
        assert done.returncode == 2 and not done.stdout and all(part in done.stderr for part in expected), (words, done)


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name, command, flags in worlds():
            for schedule in ("1f1b", "gpipe"):
                check_times(bench(folder, command, [*PIPELINE, "--rows", ROWS, "--schedule", schedule], flags))
                check_pipeline(f"{name}, {schedule}", folder)
            check_times(bench(folder, command, MIXTURE, flags))
            check_mixture(name, folder)
            print(f"{name}: pipeline and mixture layer are autograd's")
        tensor_parallel(folder)
        serves(folder)
    passes()
    refuses()


if __name__ == "__main__":
    main()
