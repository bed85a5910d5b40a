#!/usr/bin/env python3
"""scripts/tokenize with a byte-level BPE tokenizer.json that the tokenizers library trained here: what stands in the dataset
decodes to the text, document by document, and `piper train` takes it."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from switches import skip

PIPER = os.environ.get("PIPER", "build/release/piper")
ROOT = pathlib.Path(__file__).resolve().parent.parent
try:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers
except ImportError as error:
    skip(error)
sys.path.insert(0, str(ROOT / "tests"))
import megatron_data  # its reader of .bin/.idx, which knows nothing of Piper

TEXTS = ["The quick brown fox jumps over the lazy dog. " * 40, "Größe, naïve café: ½ × 3 € 你好 😀\n" * 30, "", "one\ttwo\r\nthree"]


def call(*arguments, code=0):
    run = subprocess.run([sys.executable, ROOT / "scripts" / "tokenize", "--piper", PIPER, *map(str, arguments)],
                         capture_output=True, text=True)
    assert run.returncode == code, run.stderr
    return run.stderr


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(
            vocab_size=400, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
        (folder / "b.txt").write_text(TEXTS[0], encoding="utf-8")

        call(folder, folder / "a.jsonl", folder / "b.txt", "--out", folder / "d", "--end", "<|end|>")
        _, documents = megatron_data.read(folder / "d")
        end = tokenizer.token_to_id("<|end|>")
        assert all(document[-1] == end for document in documents)
        read = [tokenizer.decode(document, skip_special_tokens=True) for document in documents]
        assert read == [*TEXTS, TEXTS[0]], read
        assert max(map(max, documents)) > 256, "no merge was ever used"

        model = {**megatron_data.MODEL, "vocab_size": tokenizer.get_vocab_size()}
        (folder / "model.json").write_text(json.dumps(model))
        run = subprocess.run([PIPER, "train", "--model", folder / "model.json", "--data", folder / "d", "--cluster", "rtx4090x8",
                              "--sequence", "16", "--steps", "2", "--precision", "fp32", "--run", folder / "run"], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr

        assert "is no token" in call(folder, folder / "b.txt", "--out", folder / "e", "--end", "<eos>", code=2)
        assert "tokenizer.json" in call(folder / "a.jsonl", folder / "b.txt", "--out", folder / "e", code=2)
        assert "line 1" in call(folder, folder / "a.jsonl", "--out", folder / "e", "--jsonl-key", "words", code=2)
        (folder / "c.txt").write_bytes(b"\xff\xfe")
        assert "UTF-8" in call(folder, folder / "c.txt", "--out", folder / "e", code=2)
        assert not (folder / "e.bin").exists()
    print("tokenize_script: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
