#!/usr/bin/env python3
"""Where ranks sit is worked out in piper/strategy alone (rank_layout.h, and the sizes that strategy::Mesh names): elsewhere no two
degrees are multiplied and no rank is divided by one. And what the host hands to a device goes through nn::put_on_device() alone: elsewhere
nobody says non_blocking, since CUDA waits all the same where memory is not pinned.

Run from anywhere; exits 1 and lists every place. `--self-test` proves that the check can fail. Tests and fixtures may do as they like.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEGREE = r"(?:\w+(?:\.|->|\(\)\.))*mesh_?(?:\.|->)(?:pp|ep|dp|vpp|etp|tp|cp)\b"
WRONG = (
    (re.compile(rf"{DEGREE}\s*[*/%]\s*{DEGREE}"), "two degrees are combined"),
    (re.compile(rf"\b(?:rank|from|to|member)\w*(?:\.|->)value\s*[/%]\s*{DEGREE}"), "a rank is taken apart"),
    (re.compile(rf"\b(?:stage|index|member|place|replica)\w*\s*[*/%]\s*{DEGREE}"), "a rank is put together or taken apart"),
    (re.compile(rf"{DEGREE}\s*\*\s*(?:stage|index|member|replica)\w*\b"), "a rank is put together"),
)
NON_BLOCKING = re.compile(r"\bnon_blocking(?!\()")  # a socket has a function of that name
# host_read has put_on_device(), host_memory pinned memory, tensor_device_operations copies on a device, bench_operations what it measures.
MAY_SAY_SO = {"piper/nn/host_read.cpp", "piper/executor/host_memory.cpp", "piper/executor/tensor_device_operations.cpp",
              "piper/profile/bench_operations.cpp"}
TOPS = ("piper", "bench", "studies")
FIXTURE = re.compile(r"_test\.(cpp|h)$")


def problems_of(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, what in WRONG:
            if pattern.search(line.split("//")[0]):
                yield f"{path}:{number}: {what}: {line.strip()}; strategy::RankLayout or strategy::Mesh has it"
        if NON_BLOCKING.search(line) and str(path) not in MAY_SAY_SO:
            yield f"{path}:{number}: a copy to or from a device: {line.strip()}; nn::put_on_device() and nn::read_on_host() make them"


def self_test():
    for line in ("x = rank.value / strategy_.mesh.dp;", "y = s.mesh.pp * s.mesh.vpp;", "Rank(stage * best.mesh.dp)", "base = index * s.mesh.dp;",
                 "if (from.value % strategy_.mesh.ep)", "n = mesh->tp * mesh->cp;", "x.to(device, /*non_blocking=*/true);"):
        assert list(problems_of("a.cpp", line)), line
    for line in ("s.num_micro_batches % s.mesh.pp", "bytes / s.mesh.ep", "s.mesh.num_virtual_stages()", "// s.mesh.pp * s.mesh.vpp"):
        assert not list(problems_of("a.cpp", line)), line
    print("check_layout: self-test passed")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    files = [f for f in (f for top in TOPS for f in sorted((ROOT / top).rglob("*"))) if f.suffix in (".cpp", ".h") and f.parent.name != "strategy" and not FIXTURE.search(f.name)]
    assert len(files) > 300, len(files)
    problems = [p for f in files for p in problems_of(f.relative_to(ROOT), f.read_text())]
    print("\n".join(problems) or f"check_layout: ranks are worked out in piper/strategy alone, and copies to devices made in piper/nn ({len(files)} files)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
