#!/usr/bin/env python3
"""The only direction an include may take is left to right through the house, and torch stays right of its line; nothing in piper/ includes
or links what lies beside it (bench/); a header includes what it names of the standard library and of fmt (the compiler would not say so: it
has those precompiled).

Run from anywhere; exits 1 and lists every wrong include. `--self-test` proves that the check can fail.
"""
import pathlib
import re
import sys

ORDER = ("base files model cluster strategy balance graph collective schedule cost validate sim placement plan export report comm nccl data "
         "nn executor profile optim checkpoint train cli").split()
FIRST_WITH_TORCH = ORDER.index("nn")
# What lies beside piper/, each a program of its own, may include all of piper/, which includes and links none of it.
BESIDE = ["bench", "studies"]
# Beside piper/, too: what its tests share, in a folder for each of piper's. Only tests include it and link it.
TESTING = "testing"
OF_TESTING = re.compile(rf"\bpiper_{TESTING}")
LINK_OF_A_TEST = re.compile(r"target_link_libraries\(piper_\w+_test ")
# The planner's halves (linked without torch) of cli/ and bench/, and all of studies/, may not include what is right of the line either.
FULL = {"cli": re.compile(r"(checkpoint_|data_|load_corpus|full_|train_|eval_|profile_)"),
        "bench": re.compile(r"(full_benches|moe|passes|pipeline|world|stage|linear_stage|mixture_stage|step_bench)"),
        "studies": re.compile(r"(?!)")}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")

# Where a name of the standard library or of fmt comes from. What nearly every header brings (std::move, std::pair) is left out.
HOME = {"vector": "vector", "string": "string", "to_string": "string", "span": "span", "as_bytes": "span", "byte": "cstddef",
        "optional": "optional", "function": "functional", "filesystem": "filesystem", "map": "map", "unique_ptr": "memory",
        "shared_ptr": "memory", "make_unique": "memory", "make_shared": "memory", "enable_shared_from_this": "memory",
        "string_view": "string_view", "array": "array", "mutex": "mutex", "lock_guard": "mutex", "deque": "deque", "tuple": "tuple",
        "atomic": "atomic", "runtime_error": "stdexcept", "logic_error": "stdexcept", "unordered_map": "unordered_map",
        "condition_variable": "condition_variable", "thread": "thread", "initializer_list": "initializer_list", "chrono": "chrono",
        "set": "set", "ofstream": "fstream", "ifstream": "fstream", "numeric_limits": "limits", "mt19937": "random",
        "mt19937_64": "random", "minstd_rand": "random", "variant": "variant", "bit_cast": "bit", "countr_zero": "bit",
        "countl_zero": "bit", "max": "algorithm", "min": "algorithm", "sort": "algorithm", "rotate": "algorithm", "equal": "algorithm",
        "iota": "numeric", "numbers": "numbers", "sqrt": "cmath", "log": "cmath", "exp": "cmath", "cos": "cmath", "isfinite": "cmath",
        "memcpy": "cstring", "getenv": "cstdlib", "strtoull": "cstdlib", "from_chars": "charconv", "exception_ptr": "exception"}
STANDARD = re.compile(r"\bstd::([a-z_0-9]+)")
INTEGER = re.compile(r"\b(?:std::)?u?int(?:8|16|32|64)_t\b")


def forgotten(path, text):
    """The headers of the standard library and of fmt that a header names things of without including them."""
    code = re.sub(r'"(?:\\.|[^"\\])*"', '""', "\n".join(line.split("//")[0] for line in text.splitlines() if "#include" not in line))
    included = set(INCLUDE.findall(text))
    wanted = {HOME[name]: f"std::{name}" for name in STANDARD.findall(code) if name in HOME}
    if INTEGER.search(code):
        wanted["cstdint"] = "integers of a stated width"
    if "fmt::" in code and not any(name.startswith("fmt/") for name in included):
        wanted["fmt/format.h"] = "fmt::"
    for header, name in sorted(wanted.items()):
        if header not in included:
            yield f"{path}: names {name} without including <{header}>"


def problems_of(path, folder, text):
    rank = (ORDER + BESIDE).index(folder)
    planner_half = folder in FULL and not FULL[folder].match(path.name)
    for included in INCLUDE.findall(text):
        if (rank < FIRST_WITH_TORCH or planner_half) and TORCH.match(included):
            yield f"{path}: includes {included}; torch stays right of the line ({', '.join(ORDER[FIRST_WITH_TORCH:-1])})"
        if included.split("/")[0] in BESIDE and included.split("/")[0] != folder:
            yield f"{path}: includes {included}, which lies beside it; what lies beside piper/ includes piper and itself"
        if included.startswith(f"{TESTING}/"):
            other = included.split("/")[1]
            if path.parts[0] != TESTING and not path.name.endswith(("_test.cpp", "_test.h")):
                yield f"{path}: includes {included}; only tests include {TESTING}/"
            elif ORDER.index(other) > rank:
                yield f"{path}: includes {included}; {folder} stands left of {other}"
        if not included.startswith("piper/"):
            continue
        other = included.split("/")[1]
        if other not in ORDER:
            yield f"{path}: includes {included}; '{other}' is not a folder of the house"
        elif ORDER.index(other) > rank:
            yield f"{path}: includes {included}; {folder} stands left of {other}"
        elif planner_half and ORDER.index(other) in range(FIRST_WITH_TORCH, ORDER.index("cli")):
            yield f"{path}: includes {included}; the planner's part of {folder} is built without {other}"


def links_of(path, text):
    """The build of piper/ links nothing of what lies beside it, but that its tests link what tests share."""
    for folder in BESIDE:
        if re.search(rf"\bpiper(_|::){folder}\b|DEPENDS[^)]*\s{folder}\b", text):
            yield f"{path}: links {folder}, which lies beside piper/"
    for line in text.splitlines():
        if OF_TESTING.search(line) and not LINK_OF_A_TEST.match(line):
            yield f"{path}: {line.strip()}; only tests link {TESTING}/"


def main():
    if "--self-test" in sys.argv:
        wrong = [("graph", "#include <piper/schedule/step.h>"), ("cost", "#include <ATen/ATen.h>"),
                 ("base", "#include <piper/misc/x.h>"), ("cli", "#include <piper/nn/stage.h>"), ("cli", "#include <studies/statements.h>"),
                 ("studies", "#include <ATen/ATen.h>"), ("studies", "#include <piper/nn/stage.h>"), ("studies", "#include <bench/stage.h>"),
                 ("bench", "#include <piper/nn/stage.h>"), ("train", "#include <bench/stage.h>"), ("nn", "#include <testing/nn/whole_step.h>")]
        for folder, text in wrong:
            assert list(problems_of(pathlib.Path("x.cpp"), folder, text)), text
        assert not list(problems_of(pathlib.Path("x.cpp"), "studies", "#include <piper/cli/command.h>\n#include <studies/phases.h>"))
        assert list(problems_of(pathlib.Path("piper/sim/x_test.cpp"), "sim", "#include <testing/train/equivalence_run.h>"))
        assert not list(problems_of(pathlib.Path("piper/sim/x_test.cpp"), "sim", "#include <testing/cost/example_model.h>"))
        for text in ("target_link_libraries(piper PRIVATE piper_bench)", "piper_folder(NAME x\n  DEPENDS base bench\n  TESTS a_test.cpp)",
                     "target_link_libraries(piper PRIVATE piper_studies)", "target_link_libraries(piper_nn PUBLIC piper_testing_nn)"):
            assert list(links_of("CMakeLists.txt", text)), text
        for text in ("# What piper and the studies beside it share", "target_link_libraries(piper_nn_test PRIVATE piper_testing_nn)",
                     "piper_folder(NAME x SOURCES bench.cpp DEPENDS base TESTS bench_test.cpp)"):
            assert not list(links_of("CMakeLists.txt", text)), text
        assert list(forgotten("x.h", "#include <string>\nstd::vector<std::string> names();"))
        assert not list(forgotten("x.h", "#include <string>\nstd::string name();  // not a std::vector"))
        assert not list(problems_of(pathlib.Path("x.cpp"), "nn", "#include <ATen/ATen.h>\n#include <piper/model/model.h>"))
        print("check_includes: the check can fail")
        return 0
    root = pathlib.Path(__file__).resolve().parent.parent
    files = [p for top in ("piper", TESTING, *BESIDE) for p in sorted((root / top).rglob("*")) if p.suffix in (".h", ".cpp")]
    found = []
    for path in files:
        inside = path.relative_to(root)
        folder = inside.parts[0 if inside.parts[0] in BESIDE else 1]
        found += problems_of(inside, folder, path.read_text())
        if path.suffix == ".h":
            found += forgotten(inside, path.read_text())
    for path in sorted((root / "piper").rglob("CMakeLists.txt")):
        found += links_of(path.relative_to(root), path.read_text())
    for line in found:
        print(line)
    print(f"check_includes: {len(files)} files, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
