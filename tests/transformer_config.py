#!/usr/bin/env python3
"""The settings that plans are exported with are taken by TransformerConfig of megatron-core (PyPI; the wheel that scripts/setup --tests
fetches), and by nothing else: the values of a Megatron-Bridge recipe are evaluated without Megatron-Bridge. Best plans of a few models, and
strategies by hand. Megatron's own parser is asked by tests/megatron_oracle.py."""
import ast
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

from switches import skip

PIPER = os.environ.get("PIPER_PLANNER") or os.environ.get("PIPER", "build/release/piper")
ROOT = pathlib.Path(__file__).resolve().parents[1]
BY_PLAN = [("qwen3-30b-a3b", "megatron-bridge"), ("mixtral-8x7b", "megatron"), ("deepseek-v2-lite", "megatron-bridge")]
BY_HAND = [["gpt-oss-20b", "--ep", 8, "--dp", 8], ["deepseek-v3", "--pp", 8, "--ep", 32, "--dp", 32, "--recompute", "full"],
           ["glm-4.5", "--pp", 4, "--tp", 2, "--sequence-parallel", "--ep", 8, "--dp", 16, "--zero", 1, "--offload", "optimizer"]]


def piper(*arguments):
    done = subprocess.run([PIPER, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def model_of(recipe, names):
    """The provider of a recipe, and the settings of its model by name."""
    call = next(node for node in ast.walk(ast.parse(recipe)) if isinstance(node, ast.keyword) and node.arg == "model").value
    return call.func.id, {k.arg: eval(ast.unparse(k.value), {"__builtins__": {}}, names) for k in call.keywords}


def exported(folder):
    for model, trainer in BY_PLAN:
        file = folder / "plan.json"
        piper("plan", "--model", model, "--cluster", "dgx-h100", "--devices", 64, "--trainer", trainer, "--out", file)
        yield f"{model}, {trainer}'s best on 64", piper("export", file, "--to", "megatron-bridge", "--cluster", "dgx-h100")
    for model, *axes in BY_HAND:
        asked = ["--model", model, "--cluster", "dgx-h100", "--sequence", 4096, "--precision", "bf16", *axes]
        yield f"{model}, by hand", piper("export", "--to", "megatron-bridge", *asked)


def main():
    wheels = sorted((ROOT / ".venv" / "oracles").glob("megatron_core-*.whl"))
    if not wheels:
        skip("no wheel of megatron-core in .venv/oracles; scripts/setup --tests fetches it")
    version = wheels[-1].name.split("-")[1]
    with tempfile.TemporaryDirectory() as name:
        zipfile.ZipFile(wheels[-1]).extractall(name)
        sys.path.insert(0, name)
        import torch
        try:
            from megatron.core.activations import squared_relu
            from megatron.core.fusions.fused_bias_geglu import quick_gelu
            from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
        except ImportError as error:
            skip(f"megatron-core {version} does not import here: {error}")
        names = {"F": torch.nn.functional, "torch": torch, "squared_relu": squared_relu, "quick_gelu": quick_gelu}
        for what, recipe in exported(pathlib.Path(name)):
            provider, settings = model_of(recipe, names)
            config = MLATransformerConfig if "MLA" in provider else TransformerConfig
            fields = {field.name for field in dataclasses.fields(config)}
            taken = {key: value for key, value in settings.items() if key in fields}
            assert len(taken) > 25, (what, sorted(taken))
            taken.setdefault("pipeline_dtype", torch.bfloat16)  # a provider's own default
            made = config(**taken)
            for key in ("num_layers", "num_moe_experts", "expert_model_parallel_size", "moe_router_topk"):
                assert getattr(made, key) == settings[key], (what, key)
            print(f"transformer_config: {what}: {len(taken)} settings taken; of {len(settings) - len(taken) + 1} {version} knows no field")
        # It does refuse: what its rules forbid.
        for wrong in ({"moe_router_enable_expert_bias": True, "moe_router_score_function": "softmax"},
                      {"tensor_model_parallel_size": 2, "sequence_parallel": True, "num_query_groups": 3}):
            try:
                config(**{**taken, **wrong})
            except (ValueError, AssertionError):
                continue
            raise AssertionError(f"TransformerConfig takes {wrong}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
