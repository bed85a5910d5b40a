"""One case of parity with transformers, as files that hf_parity.py has written: Piper's side is computed and compared. Needs torch alone,
so that a machine without transformers compares too.

A folder holds what tests/hf_parity_probe.cpp reads (its header says what), and what transformers has computed in fp32: logits.expected
[B * S, V] and, for each tensor of index.json, `file` + ".expected", its gradient. index.json's "auxiliary", where a case has it, is
{"loss": the auxiliary loss, with which gradients are, "claimed": what must be equal, "all", "loss" alone or "nothing"}. Its "bf16", where a case has it, says how far
transformers' own bf16 is from that: {"logits": norm of the difference over the norm, "gradients": the same of all gradients together}.

usage: parity_case.py PROBE DEVICE FOLDER...; prints a line of JSON for each folder and precision, fp32 and bf16: {"FOLDER, PRECISION": what was found}.
"""
import json
import pathlib
import subprocess
import sys

import torch

LOGITS_TOLERANCE = 1e-4    # absolute, in fp32
GRADIENT_TOLERANCE = 1e-3  # of the tensor's norm, in fp32
AUXILIARY_TOLERANCE = 1e-6 # of the loss, in fp32
BF16_FACTOR = 2            # of transformers' own error


def floats(path):
    return torch.from_file(str(path), size=path.stat().st_size // 4, dtype=torch.float32).double()


def apart(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-30))


def compare_auxiliary(name, expected, loss, gradients):
    off = loss / expected["loss"] - 1
    worst, worst_name = max((apart(ours, theirs), of) for of, ours, theirs in gradients)
    passed = expected["claimed"] == "nothing" or (
        abs(off) <= AUXILIARY_TOLERANCE and (expected["claimed"] == "loss" or worst <= GRADIENT_TOLERANCE))
    said = f"{name} auxiliary loss {loss:.7f}, {off:+.1e} (<= {AUXILIARY_TOLERANCE:.0e})"
    said += f", gradients, worst {worst:.1e} of its norm (<= {GRADIENT_TOLERANCE:.0e}) {worst_name}" if expected["claimed"] == "all" else ""
    return {"auxiliary": off, "gradients": worst, "passed": passed, "said": said + (", not claimed" if expected["claimed"] == "nothing" else "")}


def compare(probe, folder, device="cpu", precision="fp32"):
    """What was found, with `passed` and `said`, one line."""
    index = json.loads((folder / "index.json").read_text())
    subprocess.run([probe, str(folder), device, precision], check=True, timeout=120)
    logits, expected = floats(folder / "logits.bin"), floats(folder / "logits.expected")
    gradients = [(of["name"], floats(folder / (of["file"] + ".gradient")), floats(folder / (of["file"] + ".expected"))) for of in index["tensors"]]
    assert logits.isfinite().all() and all(ours.isfinite().all() for _, ours, _ in gradients), folder
    name = f"{folder.name:16} {device:8} {precision}"
    if "auxiliary" in index:
        return compare_auxiliary(name, index["auxiliary"], float(floats(folder / "auxiliary.bin")), gradients)
    if precision == "fp32":
        worst, worst_name = max((apart(ours, theirs), of) for of, ours, theirs in gradients)
        found = {"logits": float((logits - expected).abs().max()), "gradients": worst}
        found["passed"] = found["logits"] <= LOGITS_TOLERANCE and worst <= GRADIENT_TOLERANCE
        found["said"] = (f"{name} logits {found['logits']:.1e} (<= {LOGITS_TOLERANCE:.0e})   {len(gradients)} gradients, worst {worst:.1e} of its norm "
                         f"(<= {GRADIENT_TOLERANCE:.0e}) {worst_name}")
    else:
        theirs = index["bf16"]
        ours = {"logits": apart(logits, expected),
                "gradients": apart(torch.cat([of for _, of, _ in gradients]), torch.cat([of for _, _, of in gradients]))}
        found = {**ours, "transformers": theirs, "passed": all(ours[key] <= BF16_FACTOR * theirs[key] for key in ours)}
        found["said"] = name + ", ".join(f" {key} {ours[key]:.1e} of their norm, transformers {theirs[key]:.1e} (<= {BF16_FACTOR} x)" for key in ours)
    return found


def main():
    probe, device, folders = sys.argv[1], sys.argv[2], [pathlib.Path(name) for name in sys.argv[3:]]
    for folder in folders:
        for precision in ("fp32", "bf16"):
            try:
                found = compare(probe, folder, device, precision)
            except Exception as error:  # of one case: the others are tried too
                found = {"passed": False, "said": f"{folder.name} {device} {precision}: {type(error).__name__}: {str(error)[:200]}"}
            print(json.dumps({f"{folder.name}, {precision}": found}), flush=True)


if __name__ == "__main__":
    main()
