#!/usr/bin/env python3
"""Best plans, exported, are read by the trainers themselves: Megatron-LM's parse_args, validate_args and configuration from arguments,
and Megatron-Bridge's ConfigContainer. On a CPU: what would ask a GPU is faked, what is not installed is a module of dummies.

    MEGATRON_LM=folder [MEGATRON_BRIDGE=folder] PIPER=build/release/piper python tests/megatron_oracle.py [MODEL ...]

The folders are checkouts of NVIDIA/Megatron-LM (read at d98e8a64) and NVIDIA-NeMo/Megatron-Bridge (067f987d). Every plan is made as
`piper plan --trainer megatron` (and `megatron-bridge`), and started in a process of its own: Megatron's start script runs as it is, with a
torchrun that hands its arguments on.
"""
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from switches import skip  # noqa: E402

TWELVE = ("olmoe-1b-7b deepseek-moe-16b deepseek-v2-lite gpt-oss-20b qwen3-30b-a3b mixtral-8x7b mixtral-8x22b glm-4.5 qwen3-235b-a22b "
          "llama-4-maverick deepseek-v3 kimi-k2").split()
FILLED = {"DATA_PATH": "/tmp/data", "TOKENIZER": "/tmp/tokenizer", "LR": "3e-4", "MIN_LR": "3e-5", "TRAIN_ITERS": "100", "NODE_RANK": "0",
          "MASTER_ADDR": "localhost"}
# What is not installed without a GPU, or is no part of what is checked: the rest both do without by themselves.
DUMMIES = ("triton",)


class AnyName(type):
    """Of classes any of whose names is another such class."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return dummy_class(name)


def dummy_class(name):
    return AnyName(name, (), {"__init__": lambda self, *a, **k: None, "__call__": lambda self, *a, **k: a[0] if a and callable(a[0]) else self,
                              "__class_getitem__": classmethod(lambda cls, item: cls)})


class Dummy(types.ModuleType):
    """A module any of whose names is a class that can be called, inherited from and used as a decorator."""
    __path__ = []
    __version__ = "3.0.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, dummy_class(name))
        return getattr(self, name)


class Dummies(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if any(name == known or name.startswith(known + ".") for known in MISSING):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Dummy(spec.name)

    def exec_module(self, module):
        pass


def is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


MISSING = [name for name in DUMMIES if not is_there(name)]


def fake_machine(world):
    import typing
    import torch
    import torch._inductor.compile_fx  # as it is without triton
    os.environ.update(WORLD_SIZE=str(world), RANK="0", LOCAL_RANK="0")
    if not hasattr(typing, "override"):
        typing.override = lambda f: f
    for name in ("NotRequired", "Self", "Unpack"):
        if not hasattr(typing, name):
            setattr(typing, name, typing.Any)
    Properties = types.SimpleNamespace(major=9, minor=0, total_memory=80 << 30, name="H100", multi_processor_count=132)
    torch.cuda.get_device_properties = lambda *a: Properties
    torch.cuda.get_device_capability = lambda *a: (9, 0)
    torch.cuda.current_device = lambda: 0
    torch.cuda.device_count = lambda: 8
    sys.meta_path.append(Dummies())


def fake_transformer_engine():
    """What is asked of Transformer Engine while settings are checked: that it is there."""
    import megatron.core.models.common.embeddings.rope_utils as rope
    import megatron.core.transformer.transformer_config as config
    import megatron.core.utils as utils
    utils.is_te_min_version = config.is_te_min_version = lambda *a, **k: True
    rope.fused_apply_rotary_pos_emb = rope.fused_apply_rotary_pos_emb or object()


def run_megatron(arguments, world):
    """Megatron's own parser, validator and configuration of the model."""
    sys.path.insert(0, os.environ["MEGATRON_LM"])
    fake_machine(world)
    fake_transformer_engine()
    sys.argv = ["pretrain_gpt.py", *arguments]
    from megatron.training import arguments as reader
    reader.is_te_min_version = lambda *a, **k: True
    args = reader.parse_args()
    args = reader.validate_args(args)
    from megatron.training.argument_utils import core_transformer_config_from_args
    core_transformer_config_from_args(args)


def run_bridge(path, world):
    # Which Megatron Core does without, and Megatron-Bridge imports.
    MISSING.extend(name for name in ("transformer_engine", "omegaconf", "hydra") if not is_there(name))
    sys.path[:0] = [os.path.join(os.environ["MEGATRON_BRIDGE"], "src"), os.environ["MEGATRON_LM"]]
    fake_machine(world)
    fake_transformer_engine()
    names = {"__name__": "recipe"}
    exec(compile(pathlib.Path(path).read_text(), path, "exec"), names)
    from megatron.bridge.training.config import runtime_config_update
    runtime_config_update(names["recipe"]())  # as pretrain() does before anything else; ends in validate()


def piper(*arguments):
    done = subprocess.run([os.environ["PIPER"], *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def check(model, devices, to, folder):
    """What became of one plan: "" for accepted, or one line."""
    file = folder / f"{model}-{devices}-{to}.json"
    code, _, said = piper("plan", "--model", model, "--cluster", "dgx-h100", "--devices", str(devices), "--trainer", to, "--out", str(file))
    if code or not file.exists():
        return "no plan: " + "; ".join(line for line in said.splitlines() if line.startswith("piper: "))
    code, text, said = piper("export", str(file), "--to", to, "--cluster", "dgx-h100", "--trainer", to)
    if code:
        return "refused: " + "; ".join(line for line in said.splitlines() if "cannot run" in line)
    path = folder / f"{model}-{devices}.{'sh' if to == 'megatron' else 'py'}"
    path.write_text(text)
    environment = {**os.environ, **FILLED, "MEGATRON": os.environ["MEGATRON_LM"]}
    if to == "megatron":
        environment["PATH"] = f"{folder}:{environment['PATH']}"
        command = ["bash", str(path)]
    else:
        command = [sys.executable, __file__, "--bridge", str(path), str(devices)]
    environment["WORLD"] = str(devices)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode == 0 and "accepted" in done.stdout:
        return ""
    return "stopped: " + " | ".join((done.stderr.strip().splitlines() or done.stdout.strip().splitlines())[-3:])


def main():
    if sys.argv[1:2] == ["--megatron"]:
        run_megatron(sys.argv[2:], int(os.environ["WORLD"]))
        return print("accepted")
    if sys.argv[1:2] == ["--bridge"]:
        run_bridge(sys.argv[2], int(sys.argv[3]))
        return print("accepted")
    if not os.path.isdir(os.environ.get("MEGATRON_LM", "")):
        skip("MEGATRON_LM names no checkout of Megatron-LM")
    trainers = ["megatron"] + (["megatron-bridge"] if os.path.isdir(os.environ.get("MEGATRON_BRIDGE", "")) else [])
    models = sys.argv[1:] or TWELVE
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # In place of torchrun: everything behind the program is Megatron's.
        start = f'#!/usr/bin/env bash\nwhile [[ $1 != *pretrain_gpt.py ]]; do shift; done\nshift\nexec {sys.executable} {os.path.abspath(__file__)} --megatron "$@"\n'
        (folder / "torchrun").write_text(start)
        (folder / "torchrun").chmod(0o755)
        for to in trainers:
            for model in models:
                for devices in (64, 256):
                    said = check(model, devices, to, folder)
                    results[f"{model} {devices} {to}"] = said
                    print(f"{model:20} {devices:4} {to:16} {said or 'accepted'}", flush=True)
    accepted = sum(not said for said in results.values())
    print(f"megatron_oracle: {accepted} of {len(results)} accepted")
    return 0 if all(not said or said.startswith(("refused", "no plan")) for said in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
