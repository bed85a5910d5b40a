#!/usr/bin/env python3
"""`piper export` read by the trainers' own parsers: DeepSpeed's configuration where it is installed, and torchtitan's parser and configuration
classes where TORCHTITAN names a checkout of it (torch, triton, tyro, spmd_types, grain, datasets, einops and torch_checkpointing beside it). Skipped,
and said, where neither is. With --twelve: the best plans of twelve models on 64 and 256 H100 by torchtitan's profile, which takes minutes:

  TORCHTITAN=checkout PIPER=build/release/piper python tests/export_parsed.py --twelve
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from switches import skip

PIPER = os.environ.get("PIPER", "build/release/piper")
ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCH = ROOT / ".venv-bench" / "bin" / "python"  # where scripts/setup --bench puts DeepSpeed
AXES = ["--model", "mixtral-8x7b", "--pp", "2", "--ep", "4", "--dp", "8", "--micro-batch", "2", "--num-micro-batches", "4", "--precision", "bf16"]
RANKS = 16


def exported(trainer):
    done = subprocess.run([PIPER, "export", *AXES, "--to", trainer, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["text"]


def read_by_deepspeed():
    os.environ.update(DS_ACCELERATOR="cpu", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    import deepspeed
    from deepspeed.runtime.config import DeepSpeedConfig
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)  # without it, it takes the world to be one process

    class Mesh:  # what DeepSpeed asks of the launcher
        def get_data_parallel_world_size(self):
            return RANKS // 2

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "ds.json"
        path.write_text(exported("deepspeed"))
        config = DeepSpeedConfig(str(path), mpu=Mesh())
    assert (config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps) == (64, 2, 4)
    assert config.zero_optimization_stage == 0
    print("export_parsed: DeepSpeed reads its configuration")


# The best plans of these are exported by `--twelve`, for both numbers of devices.
TWELVE = ["olmoe-1b-7b", "deepseek-moe-16b", "deepseek-v2-lite", "gpt-oss-20b", "qwen3-30b-a3b", "mixtral-8x7b", "mixtral-8x22b", "glm-4.5", "qwen3-235b-a22b",
          "llama-4-maverick", "deepseek-v3", "kimi-k2"]
DEVICES = [64, 256]
# Where torchtitan has no model of the name, any config stands in: its classes read the flags.
STAND_IN = {"MODULE": "deepseek_v3", "CONFIG": "deepseek_v3_debugmodel"}


def command_of(script, folder):
    """The arguments that a start script gives to torchrun, as bash gives them."""
    fake = folder / "bin"
    fake.mkdir(exist_ok=True)
    (fake / "torchrun").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    (fake / "torchrun").chmod(0o755)
    settings = {"ASSETS": str(folder), "STEPS": "1", "MASTER_ADDR": "localhost", "NODE_RANK": "0", "PATH": f"{fake}:{os.environ['PATH']}"}
    for name, value in STAND_IN.items():
        if f"${{{name}:?" in script.read_text():
            settings[name] = value
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


def read_by_torchtitan(strategy_file, folder):
    """What torchtitan's classes make of an exported strategy; what of it they leave out or refuse fails."""
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.activation_checkpoint import FullAC
    from torchtitan.distributed.pipeline_parallel import _generate_llm_fqn_per_model_part, _get_pipeline_metadata
    strategy = json.loads(strategy_file.read_text())
    script = folder / "start.sh"
    done = subprocess.run([PIPER, "export", str(strategy_file), "--to", "torchtitan", "--out", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    arguments = command_of(script, folder)
    launcher, flags = arguments[:arguments.index("-m")], arguments[arguments.index("-m") + 2:]
    config = ConfigManager().parse_args(flags)  # refuses a flag that it does not know, and a value that is none

    mesh = strategy["mesh"]
    tp, cp, pp, ep, vpp = (mesh.get(axis, 1) for axis in ("tp", "cp", "pp", "ep", "vpp"))
    world = tp * cp * mesh["dp"] * pp
    hosts, ranks = (int(next(a for a in launcher if a.startswith(f"--{flag}=")).split("=")[1]) for flag in ("nnodes", "nproc-per-node"))
    assert hosts * ranks == world
    dims = ParallelDims.from_config(config.parallelism, world)  # its _validate() is called
    assert (dims.tp, dims.cp, dims.pp, dims.ep) == (tp, cp, pp, ep)
    assert dims.dp_replicate * dims.dp_shard == mesh["dp"]
    if config.model_spec.flavor != "debugmodel":
        config.model_spec.model.update_from_config(config=config)  # heads, experts, lengths
    training = config.training
    tokens = training.num_tokens_per_microbatch_per_dp_rank
    assert tokens % ((tp if config.parallelism.enable_sequence_parallel else 1) * (2 * cp if cp > 1 else 1)) == 0
    of_a_round = tokens * mesh["dp"] * (config.parallelism.num_pp_microbatches if pp > 1 else 1)
    assert training.num_tokens_per_train_step == strategy["global_batch_sequences"] * strategy["sequence"]
    assert training.num_tokens_per_train_step % of_a_round == 0
    assert training.num_tokens_per_train_step // of_a_round == (1 if pp > 1 else strategy["num_micro_batches"])
    assert training.max_context_length == strategy["sequence"]
    assert isinstance(config.activation_checkpoint, FullAC.Config) == (strategy["recompute"] == "full")
    if pp > 1:
        class Layers:
            layers = [None] * sum(strategy["layers_per_stage"])
        stages, layers, first, last = _get_pipeline_metadata(dims, config.parallelism, Layers)
        assert stages == pp * vpp
        split = [sum(name.startswith("layers.") for name in names) for names in _generate_llm_fqn_per_model_part(stages, layers, first, last)]
        assert split == strategy["layers_per_stage"] or "layers by stage" in done.stderr, (split, strategy["layers_per_stage"])


def without_torchtitan():
    """Why its classes cannot be read; "" where they can."""
    source = os.environ.get("TORCHTITAN", "")
    if not source:
        return "TORCHTITAN names no checkout of torchtitan"
    sys.path.insert(0, source)
    try:
        import torchtitan.trainer  # noqa: F401
    except ImportError as error:
        return f"torchtitan's packages: {error}"
    return ""


def plans_by_torchtitan(models, numbers):
    """How many of the best plans its classes take, and what happened to the others."""
    taken, problems = 0, []
    for model in models:
        for devices in numbers:
            with tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                plan = [PIPER, "plan", "--model", model, "--cluster", "dgx-h100", "--devices", str(devices), "--trainer", "torchtitan", "--out", str(folder / "s.json")]
                done = subprocess.run(plan, capture_output=True, text=True)
                try:
                    assert done.returncode == 0, done.stderr
                    read_by_torchtitan(folder / "s.json", folder)
                    taken += 1
                    print(f"  {model} on {devices}: taken", flush=True)
                except (AssertionError, ValueError, NotImplementedError, SystemExit) as error:
                    problems.append(f"{model} on {devices}: {type(error).__name__} {error}")
                    print(f"  {problems[-1]}", flush=True)
    print(f"export_parsed: torchtitan's classes take {taken} of {len(models) * len(numbers)} best plans")
    assert not problems


def main():
    reason = without_torchtitan()
    if "--twelve" in sys.argv:
        if reason:
            skip(reason)
        plans_by_torchtitan(TWELVE, DEVICES)
        return 0
    has_deepspeed = importlib.util.find_spec("deepspeed") is not None
    if not has_deepspeed and BENCH.exists() and pathlib.Path(sys.prefix) != BENCH.parent.parent:
        os.execv(BENCH, [str(BENCH), *sys.argv])
    if not has_deepspeed and reason:
        skip(f"deepspeed is not installed (scripts/setup --bench), and {reason}")
    if has_deepspeed:
        read_by_deepspeed()
    if not reason:
        plans_by_torchtitan(["mixtral-8x7b", "qwen3-30b-a3b"], [16])
    return 0


if __name__ == "__main__":
    sys.exit(main())
