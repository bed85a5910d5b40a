#!/usr/bin/env python3
"""`piper export` read by the trainers' own parsers, where they are installed: DeepSpeed's configuration, and the configuration
classes of torchtitan. Skipped, and said, where neither is."""
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


def read_by_torchtitan():
    from torchtitan.config.configs import ParallelismConfig, TrainingConfig
    classes = {"parallelism": ParallelismConfig, "training": TrainingConfig}
    given = {name: {} for name in classes}
    for line in exported("torchtitan").splitlines():
        flag, value = line.removeprefix("--").split(" ")
        section, key = flag.split(".")
        given[section][key] = int(value) if value.isdigit() else value
    parallelism, training = (classes[name](**given[name]) for name in ("parallelism", "training"))
    assert parallelism.data_parallel_replicate_degree * parallelism.data_parallel_shard_degree * parallelism.pipeline_parallel_degree == RANKS
    assert training.global_batch_size == 64
    print("export_parsed: torchtitan's classes take its flags")


def main():
    found = {name: importlib.util.find_spec(name) is not None for name in ("deepspeed", "torchtitan")}
    if not any(found.values()):
        if BENCH.exists() and pathlib.Path(sys.prefix) != BENCH.parent.parent:
            os.execv(BENCH, [str(BENCH), *sys.argv])
        skip("neither deepspeed nor torchtitan is installed (scripts/setup --bench installs DeepSpeed)")
    if found["deepspeed"]:
        read_by_deepspeed()
    if found["torchtitan"]:
        read_by_torchtitan()
    return 0


if __name__ == "__main__":
    sys.exit(main())
