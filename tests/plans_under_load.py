#!/usr/bin/env python3
"""What the default load is worth: the best plans of twelve models on 64, 256 and 1,024 devices of dgx-h100, and of DeepSeek-V3 on 2,048.
Which of them fit at zipf:0.3, and what they lose at zipf:0.2 against a plan made for that load.

    tests/plans_under_load.py            all 37, by the default trainer; some ten minutes on two cores
    tests/plans_under_load.py 64         those on 64 devices
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

PIPER = os.environ.get("PIPER", "build/release/piper")
MODELS = ["olmoe-1b-7b", "deepseek-moe-16b", "deepseek-v2-lite", "gpt-oss-20b", "qwen3-30b-a3b", "mixtral-8x7b", "mixtral-8x22b", "glm-4.5",
          "qwen3-235b-a22b", "llama-4-maverick", "deepseek-v3", "kimi-k2"]
ASKED = [(model, devices) for devices in (64, 256, 1024) for model in MODELS] + [("deepseek-v3", 2048)]


def piper(*arguments):
    done = subprocess.run([PIPER, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode in (0, 1), (arguments, done.stderr[-300:])
    return json.loads(done.stdout) if done.returncode == 0 else None


def main():
    sizes = {int(a) for a in sys.argv[1:]}
    fits, regrets, none = 0, [], 0
    asked = [(m, d) for m, d in ASKED if not sizes or d in sizes]
    for model, devices in asked:
        of = ["--model", model, "--cluster", "dgx-h100"]
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            answer = piper("plan", *of, "--devices", devices, "--out", file.name, "--json")
            if answer is None:
                none += 1
                print(f"{model:18} {devices:5}  nothing fits", flush=True)
                continue
            heavy = answer["strategies"][0]["predicted"]["heavy_load"]
            ours = piper("estimate", *of, "--strategy", file.name, "--load", "zipf:0.2", "--json")["predicted"]["step_seconds"]
        best = piper("plan", *of, "--devices", devices, "--load", "zipf:0.2", "--json")
        regret = ours / best["strategies"][0]["predicted"]["step_seconds"] - 1 if best else float("nan")
        fits += heavy["fits"]
        regrets.append(regret)
        step = answer["strategies"][0]["predicted"]["step_seconds"]
        print(f"{model:18} {devices:5}  {step:7.2f} s, at zipf:0.3 {heavy['step_seconds']:7.2f} s{'' if heavy['fits'] else ', does not fit'}; regret "
              f"{100 * regret:5.1f} %", flush=True)
    print(f"{fits} of {len(asked)} fit at zipf:0.3 ({none} fit nowhere); regret at zipf:0.2: median {100 * statistics.median(regrets):.1f} %, "
          f"worst {100 * max(regrets):.1f} %")


if __name__ == "__main__":
    main()
