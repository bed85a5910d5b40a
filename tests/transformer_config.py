#!/usr/bin/env python3
"""The settings that a plan is exported with are taken by TransformerConfig of megatron-core (PyPI; the wheel that scripts/setup --tests fetches):
best plans of a few models, and strategies by hand. Megatron's own parser is asked by tests/megatron_oracle.py."""
import ast
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

from switches import skip

PIPER = os.environ.get("PIPER_PLANNER") or os.environ.get("PIPER", "build/release/piper")
ROOT = pathlib.Path(__file__).resolve().parents[1]
BY_PLAN = ["qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v2-lite"]
BY_HAND = [["gpt-oss-20b", "--ep", 8, "--dp", 8], ["deepseek-v3", "--pp", 8, "--ep", 32, "--dp", 32, "--recompute", "full"],
           ["glm-4.5", "--pp", 4, "--tp", 2, "--sequence-parallel", "--ep", 8, "--dp", 16, "--zero", 1, "--offload", "optimizer"]]


def piper(*arguments):
    done = subprocess.run([PIPER, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def settings_of(recipe):
    """Of the model in a recipe of Megatron-Bridge: name and value of what is a literal or a function of torch's."""
    import torch
    known = {"F.silu": torch.nn.functional.silu, "torch.bfloat16": torch.bfloat16}
    call = next(node for node in ast.walk(ast.parse(recipe)) if isinstance(node, ast.keyword) and node.arg == "model").value
    found = {}
    for keyword in call.keywords:
        text = ast.unparse(keyword.value)
        try:
            found[keyword.arg] = known[text] if text in known else eval(text, {"__builtins__": {}}, {})
        except (NameError, TypeError):  # another function: not of what is checked here
            pass
    return call.func.id, found


def main():
    wheels = sorted((ROOT / ".venv" / "oracles").glob("megatron_core-*.whl"))
    if not wheels:
        skip("no wheel of megatron-core in .venv/oracles; scripts/setup --tests fetches it")
    with tempfile.TemporaryDirectory() as name:
        zipfile.ZipFile(wheels[-1]).extractall(name)
        sys.path.insert(0, name)
        try:
            from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
        except ImportError as error:
            skip(f"megatron-core does not import here: {error}")
        recipes = {}
        for model in BY_PLAN:
            file = pathlib.Path(name) / "plan.json"
            piper("plan", "--model", model, "--cluster", "dgx-h100", "--devices", 64, "--out", file)
            recipes[f"{model}, best on 64"] = piper("export", file, "--to", "megatron-bridge", "--cluster", "dgx-h100")
        for model, *axes in BY_HAND:
            asked = ["--model", model, "--cluster", "dgx-h100", "--sequence", 4096, "--precision", "bf16", *axes]
            recipes[f"{model}, by hand"] = piper("export", "--to", "megatron-bridge", *asked)
        for what, recipe in recipes.items():
            provider, settings = settings_of(recipe)
            config = MLATransformerConfig if "MLA" in provider else TransformerConfig
            fields = {field.name for field in dataclasses.fields(config)}
            taken = {key: value for key, value in settings.items() if key in fields}
            assert len(taken) > 25, (what, sorted(taken))
            made = config(**taken)
            assert made.num_moe_experts == settings["num_moe_experts"] and made.expert_model_parallel_size == settings["expert_model_parallel_size"]
            print(f"transformer_config: {what}: {len(taken)} settings taken, {len(settings) - len(taken)} unknown to {wheels[-1].name.split('-')[1]}")
        # It does refuse: an expert bias beside softmax scores.
        try:
            config(**{**taken, "moe_router_enable_expert_bias": True, "moe_router_score_function": "softmax"})
        except (ValueError, AssertionError):
            return 0
        raise AssertionError("TransformerConfig refuses nothing here")


if __name__ == "__main__":
    sys.exit(main())
