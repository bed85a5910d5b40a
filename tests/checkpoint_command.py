#!/usr/bin/env python3
"""piper checkpoint list | verify: what is there, what is wrong with it, and the exit code."""
import hashlib
import json
import pathlib
import shutil
import subprocess
import tempfile

from tiny_run import PIPER, train, write_inputs


def checkpoint(*arguments, code):
    done = subprocess.run([PIPER, "checkpoint", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, f"{arguments}: exit code {done.returncode}, not {code}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def newer(root):
    """A checkpoint of a newer Piper: the run names it and ends, it does not go back to an older one, and nothing is renamed."""
    run = root / "newer"
    train(root, run, (1, 2, 2), "--checkpoint-every", "2", "--stop-after", "4", "--keep-checkpoints", "3")
    newest = run / "checkpoints/step-00000004"
    text = (newest / "manifest.json").read_text().replace("piper-checkpoint-2", "piper-checkpoint-3")
    (newest / "manifest.json").write_text(text)
    (newest / "manifest.json.sha256").write_text(f"{hashlib.sha256(text.encode()).hexdigest()}  manifest.json\n")
    before = sorted(path.name for path in (run / "checkpoints").iterdir())
    said = train(root, run, (1, 2, 2), "--resume", code=2)
    assert "piper-checkpoint-3" in said and "newer Piper" in said, said
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == before


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_inputs(root)
        newer(root)
        run = root / "run"
        train(root, run, (2, 2, 2), "--checkpoint-every", "4", "--stop-after", "12", "--keep-checkpoints", "3")
        folder = run / "checkpoints"
        (folder / "step-00000016.tmp-1-0").mkdir()

        text = checkpoint("list", run, code=0)
        lines = text.splitlines()
        assert [line.split()[0] for line in lines[2:]] == ["step-00000012", "step-00000008", "step-00000004", "step-00000016.tmp-1-0"], text
        assert "pp 2 x ep 2 x dp 2" in lines[2] and "--resume takes this one" in lines[2] and "iB " in lines[2], text
        assert text.count("--resume takes this one") == 1 and "unfinished" in lines[5], text
        assert checkpoint("list", folder, code=0) == text
        one = checkpoint("verify", f"{folder}/step-00000008/", code=0)
        assert "every byte verified" in one and "step-00000012" not in one, one

        for shard in (1, 3):  # a flip leaves the size as it is: only verify sees it
            path = folder / f"step-00000012/rank-{shard:05}.safetensors"
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 16
            path.write_bytes(content)
        assert "BAD" not in checkpoint("list", run, code=0)
        (folder / "step-00000004/rank-00000.safetensors").unlink()
        result = json.loads(checkpoint("verify", run, "--json", code=1))
        newest, middle, oldest = result["checkpoints"]
        assert result["verified"] and result["unfinished"] == ["step-00000016.tmp-1-0"], result
        assert [c["step"] for c in result["checkpoints"]] == [12, 8, 4]
        assert len(newest["problems"]) == 2 and not newest["complete"], newest
        for shard, problem in zip((1, 3), newest["problems"], strict=True):
            assert f"rank-{shard:05}.safetensors is damaged" in problem, problem
        assert middle["complete"] and middle["newest_complete"] and middle["mesh"] == {"pp": 2, "ep": 2, "dp": 2}, middle
        assert middle["bytes"] > 100000 and middle["date_utc"].startswith("20"), middle
        assert "rank-00000.safetensors is missing" in oldest["problems"][0], oldest
        assert "BAD (1 problem)" in checkpoint("list", run, code=1)
        # What verify marks is what --resume takes.
        resumed = train(root, run, (1, 1, 1), "--resume", "--stop-after", "9", "--checkpoint-every", "1", "--keep-checkpoints", "1")
        assert "resuming after step 8 " in resumed and "set aside as step-00000012.damaged: " in resumed, resumed
        text = checkpoint("list", run, code=0)
        assert "damaged, set aside; only --fresh deletes it" in next(line for line in text.splitlines() if "step-00000012.damaged" in line), text
        result = json.loads(checkpoint("verify", run, "--json", code=0))
        assert [c["step"] for c in result["checkpoints"]] == [9] and result["damaged"] == ["step-00000012.damaged"], result

        shutil.rmtree(folder)
        folder.mkdir()
        assert "holds no checkpoints" in checkpoint("list", run, code=2)
        assert "there is no such folder" in checkpoint("verify", root / "absent", code=2)
        assert "unknown flag '--jsn'" in checkpoint("verify", run, "--jsn", code=2)
    print("checkpoint: list and verify tell every damaged and missing file, and --resume takes what they mark")


if __name__ == "__main__":
    main()
