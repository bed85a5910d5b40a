#!/usr/bin/env python3
"""bf16 with fp32 master weights and main gradients: 200 steps (60 without PIPER_FULL_COUNTS=1) on English text stay within 1 % of
fp32's loss at every tenth step; predicted memory within 3 %; a resumed run has the bits of the uninterrupted one, on another mesh
too; a checkpoint of another precision is refused; transformers reads the exported weights."""
import json
import math
import pathlib
import pydoc_data.topics
import subprocess
import tempfile

import tiny_run
from switches import FULL_COUNTS, skip_case
from tiny_run import PIPER, files, metrics, write_inputs

# English prose that every Python brings: half a million characters of its own handbook.
TEXT = "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
STEPS = 200 if FULL_COUNTS else 60
RESUMED = 20 if FULL_COUNTS else 10  # and again so many

# Wide enough that weights and activations, and not the library's workspace, are what memory goes to.
MODEL = {**tiny_run.MODEL, "hidden_size": 128, "intermediate_size": 256, "head_dim": 32}


def train(root, run, precision, mesh, *more, code=0):
    tiny_run.STEPS = STEPS
    command = tiny_run.train_command(root, run, mesh, *more)
    command += ["--learning-rate", "5e-4"]
    command[command.index("--precision") + 1] = precision
    for flag, value in (("--sequence", "64"), ("--global-batch", "8"), ("--warmup-steps", "20")):
        command[command.index(flag) + 1] = value
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, f"{' '.join(command)}: exit code {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def peak_errors(run):
    ranks = json.loads((run / "comparison.json").read_text())["ranks"]
    return [abs(r["predicted_peak_bytes"] / r["measured_peak_bytes"] - 1) for r in ranks]


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        (root / "model.json").write_text(json.dumps(MODEL))
        (root / "text.txt").write_bytes(TEXT.encode())
        # The loss of a model that knows which bytes occur, and nothing else.
        knows_bytes = math.log(len(set(TEXT.encode())))

        for precision in ("fp32", "bf16"):
            train(root, root / precision, precision, (2, 2, 2))
        losses = [[line["loss"] for line in metrics(root / precision)] for precision in ("fp32", "bf16")]
        apart = [abs(b / a - 1) for a, b in zip(*losses)][9::10]
        print(f"loss after {STEPS} steps: fp32 {losses[0][-1]:.4f}, bf16 {losses[1][-1]:.4f}; at every tenth step apart by {max(apart):.2%} at most")
        assert losses[0][-1] < knows_bytes < losses[0][0], f"fp32 has not learned: {losses[0][0]} to {losses[0][-1]}, {knows_bytes} knows which bytes occur"
        assert len(apart) == STEPS // 10
        assert max(apart) < 0.01, apart
        assert losses[0] != losses[1], "bf16 has the bits of fp32"
        worst = max(peak_errors(root / "bf16"))
        print(f"predicted memory in bf16: {worst:.1%} from measured at most")
        assert worst < 0.03

        calm, stopped = root / "calm", root / "stopped"
        saving = ("--checkpoint-every", str(RESUMED))
        train(root, calm, "bf16", (2, 2, 2), *saving, "--stop-after", str(2 * RESUMED), "--export")
        train(root, stopped, "bf16", (2, 2, 2), *saving, "--stop-after", str(RESUMED))
        refusal = train(root, stopped, "fp32", (2, 2, 2), *saving, "--resume", code=2)
        assert "BF16" in refusal and "allowed: F32" in refusal, refusal
        train(root, stopped, "bf16", (2, 2, 2), *saving, "--stop-after", str(2 * RESUMED), "--resume")
        assert files(stopped, 2 * RESUMED) == files(calm, 2 * RESUMED), "a resumed run has other bits"
        train(root, stopped, "bf16", (1, 4, 4), "--checkpoint-every", "5", "--stop-after", str(2 * RESUMED + 5), "--resume")
        print("resumed: bit-equal; on another mesh; refused in fp32")

        try:
            import torch
            from transformers import AutoModelForCausalLM
        except ImportError as error:
            skip_case("exported weights", error)
            return
        model = AutoModelForCausalLM.from_pretrained(calm / "weights", torch_dtype=torch.float32)
        told = json.loads(subprocess.run([PIPER, "eval", "--weights", str(calm / "weights"), "--data", str(root / "text.txt"), "--sequence", "64",
                                          "--windows", "8", "--json"], capture_output=True, text=True, check=True).stdout)
        tokens = torch.tensor(list((root / "text.txt").read_bytes()[: 8 * 64 + 1]))
        windows = tokens[: 8 * 64].view(8, 64), tokens[1 : 8 * 64 + 1].view(8, 64)
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(model(windows[0]).logits.reshape(-1, 256), windows[1].reshape(-1)).item()
        assert abs(loss - told["loss"]) < 1e-3, (loss, told)
        print(f"exported weights: loss {told['loss']:.4f} by piper eval, {loss:.4f} by transformers")


if __name__ == "__main__":
    main()
