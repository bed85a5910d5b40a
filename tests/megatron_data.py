#!/usr/bin/env python3
"""Datasets as Megatron-LM lays them out (MMIDIDX, version 1), written and read here with `struct` alone: what this file writes
`piper data show` and `piper train` understand, what `piper data build` writes this file reads. Then what hangs on it: a mesh's
validation loss is that of `piper eval`, a resumed run has the bits of the whole one, damage is refused before training."""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

PIPER = os.environ.get("PIPER", "build/release/piper")
CODES = {"uint8": (1, "B"), "int8": (2, "b"), "int16": (3, "h"), "int32": (4, "i"), "int64": (5, "q"), "uint16": (8, "H")}
MODEL = {"model_type": "mixtral", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 48, "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 300, "rms_norm_eps": 1e-5,
         "max_position_embeddings": 128, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu"}
SEQUENCE = 16
MEASURED = ("step_seconds", "tokens_per_second", "mfu", "peak_bytes")


def write(prefix, kind, documents):
    """Documents are lists of sequences, sequences lists of tokens."""
    code, letter = CODES[kind]
    sequences = [sequence for document in documents for sequence in document]
    size, pointers, indices = struct.calcsize("<" + letter), [], [0]
    at = 0
    for sequence in sequences:
        pointers.append(at)
        at += len(sequence) * size
    for document in documents:
        indices.append(indices[-1] + len(document))
    with open(f"{prefix}.bin", "wb") as file:
        for sequence in sequences:
            file.write(struct.pack(f"<{len(sequence)}{letter}", *sequence))
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sequences), len(indices)))
        file.write(struct.pack(f"<{len(sequences)}i", *map(len, sequences)))
        file.write(struct.pack(f"<{len(pointers)}q", *pointers))
        file.write(struct.pack(f"<{len(indices)}q", *indices))


def read(prefix):
    """(kind, documents as flat lists)"""
    index, tokens = pathlib.Path(f"{prefix}.idx").read_bytes(), pathlib.Path(f"{prefix}.bin").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    version, code, num_sequences, num_indices = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    kind, letter = next((kind, letter) for kind, (c, letter) in CODES.items() if c == code)
    lengths = struct.unpack_from(f"<{num_sequences}i", index, 34)
    pointers = struct.unpack_from(f"<{num_sequences}q", index, 34 + 4 * num_sequences)
    indices = struct.unpack_from(f"<{num_indices}q", index, 34 + 12 * num_sequences)
    assert len(index) == 34 + 12 * num_sequences + 8 * num_indices and indices[0] == 0 and indices[-1] == num_sequences
    sequences = [list(struct.unpack_from(f"<{n}{letter}", tokens, at)) for n, at in zip(lengths, pointers)]
    return kind, [sum(sequences[a:b], []) for a, b in zip(indices, indices[1:])]


def piper(*arguments, code=0):
    run = subprocess.run([PIPER, *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == code, f"piper {' '.join(map(str, arguments))}: exit {run.returncode}\n{run.stderr}"
    return json.loads(run.stdout) if code == 0 else run.stderr


def check_formats(folder):
    source = random.Random(1)
    for kind, (_, letter) in CODES.items():
        limit = 1 << (8 * struct.calcsize(letter) - (letter.islower()))
        documents = [[[source.randrange(min(limit, 1 << 40)) for _ in range(source.choice([0, 1, 5, 900]))]
                      for _ in range(source.choice([1, 1, 3]))] for _ in range(40)]
        prefix = folder / kind
        write(prefix, kind, documents)
        flat = [token for document in documents for sequence in document for token in sequence]
        shown = piper("data", "show", prefix, "--tokens", 50, "--json")
        expected = {"documents": 40, "sequences": sum(map(len, documents)), "tokens": len(flat), "token_type": kind,
                    "largest_token": max(flat), "first_tokens": flat[:50]}
        assert {key: shown[key] for key in expected} == expected, (shown, expected)
    print(f"megatron_data: {len(CODES)} token types written by struct are shown as they are")


def check_build(folder):
    texts = ["To be, or not to be", "", "naïve – ✓", "x" * 5000]
    lines = folder / "lines.jsonl"
    lines.write_text("".join(json.dumps({"id": i, "text": text}, ensure_ascii=i % 2 == 0) + "\n" for i, text in enumerate(texts)))
    plain = folder / "plain.txt"
    plain.write_bytes(bytes(range(256)))
    documents = [list(text.encode()) for text in texts if text] + [list(range(256))]
    built = piper("data", "build", "--input", lines, plain, "--out", folder / "bytes", "--json")
    assert (built["documents"], built["empty_documents"], built["vocabulary"]) == (4, 1, 256), built
    assert read(folder / "bytes") == ("uint8", documents)
    piper("data", "build", "--input", lines, plain, "--out", folder / "eod", "--append-eod", "--json")
    assert read(folder / "eod") == ("uint16", [document + [256] for document in documents])
    arrays = [[1, 2, 3], [50256] * 1000]
    (folder / "ids.jsonl").write_text("".join(json.dumps({"tokens": ids}) + "\n" for ids in arrays))
    for vocabulary, kind in ((0, "int32"), (50257, "uint16"), (100000, "int32")):
        more = ["--vocabulary", vocabulary] if vocabulary else []
        piper("data", "build", "--input", folder / "ids.jsonl", "--jsonl-key", "tokens", "--out", folder / "ids", "--overwrite", "--json",
              *more)
        assert read(folder / "ids") == (kind, arrays)
    refused = piper("data", "build", "--input", plain, "--out", folder / "x", "--tokenizer", "tokenizer.json", code=2)
    assert refused.count("\n") == 1 and "--jsonl-key tokens" in refused, refused
    refused = piper("data", "build", "--input", plain, "--out", folder / "bytes", code=2)
    assert "is there already" in refused, refused
    print("megatron_data: what data build writes is read by struct")


def metrics(run):
    return [{k: v for k, v in json.loads(line).items() if k not in MEASURED} for line in (run / "metrics.jsonl").read_text().splitlines()]


def check_training(folder):
    source = random.Random(2)
    words = [[source.randrange(300) for _ in range(source.randrange(2, 6))] for _ in range(20)]
    prefix = folder / "corpus"
    write(prefix, "uint16", [[sum((source.choice(words) for _ in range(30)), [])] for _ in range(60)])
    model = folder / "model.json"
    model.write_text(json.dumps(MODEL))
    def common(steps=12, global_batch=8, validation=0.1):
        return ["train", "--model", model, "--cluster", "rtx4090x8", "--precision", "fp32", "--sequence", SEQUENCE, "--global-batch",
                global_batch, "--data", prefix, "--validation", validation, "--steps", steps, "--learning-rate", 0.01, "--json"]

    mesh = ["--pp", 2, "--ep", 2, "--dp", 2]
    validate = ["--validate-every", 5, "--validation-windows", 13]
    piper(*common(), *mesh, *validate, "--export", "--run", folder / "whole", "--checkpoint-every", 6)
    whole = metrics(folder / "whole")
    validated = {line["step"]: line.pop("validation_loss") for line in whole if "validation_loss" in line}
    assert list(validated) == [5, 10, 12] and validated[12] < validated[5] - 0.1, validated

    # 13 windows do not fill two global batches of 8: what fills them up must not count.
    evaluated = piper("eval", "--weights", folder / "whole/weights", "--data", prefix, "--split", "validation", "--validation", 0.1,
                      "--windows", 13, "--sequence", SEQUENCE, "--json")
    assert evaluated["tokens"] == 13 * SEQUENCE, evaluated
    assert abs(evaluated["loss"] - validated[12]) < 1e-5, (evaluated, validated)

    piper(*common(), *mesh, "--run", folder / "plain", "--checkpoint-every", 6)
    assert metrics(folder / "plain") == whole, "validation changed the training"
    piper(*common(), *mesh, *validate, "--run", folder / "stopped", "--checkpoint-every", 6, "--stop-after", 6)
    piper(*common(), *mesh, *validate, "--run", folder / "stopped", "--checkpoint-every", 6, "--resume")
    resumed = metrics(folder / "stopped")
    # The stopped run also validates after its last step.
    assert [{k: v for k, v in line.items() if k != "validation_loss"} for line in resumed] == whole, "resumed on other tokens"
    assert {line["step"]: line["validation_loss"] for line in resumed if "validation_loss" in line and line["step"] != 6} == validated
    def files(run):
        return json.loads((folder / run / "checkpoints/step-00000012/manifest.json").read_text())["files"]
    assert files("whole") == files("plain") == files("stopped"), "checkpoints differ"

    # Another mesh reads the same global batches: the first step's loss, before any rounding could build up, is the same.
    piper(*common(), "--run", folder / "one")
    assert abs(metrics(folder / "one")[0]["loss"] - whole[0]["loss"]) < 1e-5
    refused = piper(*common(steps=14, global_batch=16), *mesh, "--run", folder / "stopped", "--resume", code=2)
    assert "the same global batch" in refused, refused
    refused = piper(*common(validation=0), *mesh, "--run", folder / "v", "--validate-every", 2, code=2)
    assert "--validate-every needs" in refused, refused
    print(f"megatron_data: pp 2 ep 2 dp 2 validates to {validated[12]:.6f}, eval to {evaluated['loss']:.6f}; same bits resumed and unvalidated")


def check_refusals(folder):
    """Exit code 2 and one line before anything is trained."""
    model = folder / "model.json"
    prefix = folder / "bad"
    write(prefix, "uint16", [[[1, 2, 3] * 100]])
    index, tokens = pathlib.Path(f"{prefix}.idx").read_bytes(), pathlib.Path(f"{prefix}.bin").read_bytes()

    def refused(name, new_index, new_tokens, *expected, data=(prefix,)):
        pathlib.Path(f"{prefix}.idx").write_bytes(new_index)
        pathlib.Path(f"{prefix}.bin").write_bytes(new_tokens)
        line = piper("train", "--model", model, "--cluster", "rtx4090x8", "--precision", "fp32", "--sequence", SEQUENCE, "--data", *data,
                     "--run", folder / "never", code=2)
        assert line.count("\n") == 1 and all(piece in line for piece in expected), (name, line)
        assert not (folder / "never").exists(), name

    refused("cut index", index[:-1], tokens, "bad.idx", "byte 61", "62 bytes")
    refused("cut tokens", index, tokens[:-1], "bad.bin has 599 bytes")
    refused("pointer", index[:38] + struct.pack("<q", 1 << 60) + index[46:], tokens, "byte 38", str(1 << 60))
    refused("vocabulary", index, tokens[:-2] + struct.pack("<H", 300), "bad.bin: byte 598: token 300 at position 299; allowed: 0 to 299")
    refused("one file of the two", index, tokens, "bad.idx", f"give {prefix}", data=(f"{prefix}.idx",))
    refused("mixed", index, tokens, "byte text", data=(prefix, folder / "plain.txt"))
    pathlib.Path(f"{prefix}.bin").unlink()
    line = piper("data", "show", prefix, code=2)
    assert "bad.bin: is missing" in line and line.count("\n") == 1, line
    print("megatron_data: 7 kinds of damage are refused with one line each")


def main():
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root)
        check_formats(folder)
        check_build(folder)
        check_training(folder)
        check_refusals(folder)


if __name__ == "__main__":
    sys.exit(main())
