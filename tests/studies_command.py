#!/usr/bin/env python3
"""`piper-studies`: what papers print beside what is computed, for each of its commands; and the old words of `piper` say where they went."""
import json
import os
import subprocess

PIPER, STUDIES = os.environ.get("PIPER", "build/release/piper"), os.environ.get("STUDIES", "build/release/piper-studies")
NAMES = ["plain", "parm-baseline", "parm-s1", "parm-s2"]
LAYER = ["--model", "mixtral-8x7b", "--cluster", "a800", "--sequence", "8192", "--tp", "8", "--etp", "8", "--ep", "2"]
H100 = ["--model", "mixtral-8x7b", "--cluster", "dgx-h100"]


def run(program, *arguments, code=0):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, (arguments, done.returncode, done.stderr)
    return done.stdout if code == 0 else done.stderr


def studies(*arguments, code=0):
    return run(STUDIES, *arguments, code=code)


def check_statements():
    parm = studies("statements", "parm")
    for piece in ("Table IV", "Fig. 7", "Algorithm 1, line 2", "misprint", "not published", "assumed"):
        assert piece in parm, piece
    monta = json.loads(studies("statements", "monta", "--json"))
    by_what = {s["statement"]: s for s in monta["statements"]}
    assert by_what["baseline, all-to-all of 256 M"]["verdict"] == "holds"
    assert by_what["largest gain of the all-to-all at B2/B1 = 8"]["verdict"] == "misprint"
    assert monta["assumptions"]
    hybridep = json.loads(studies("statements", "hybridep", "--json"))
    by_what = {s["statement"]: s for s in hybridep["statements"]}
    assert by_what["Mix-1, by the pre-expert time as printed"]["verdict"] == "misprint"
    assert by_what["Mix-1, with ten times that time"]["verdict"] == "holds"
    assert all(s["verdict"] == "holds" for s in hybridep["statements"] if "messages" in s["statement"])
    pipemoe = json.loads(studies("statements", "pipemoe", "--json"))
    by_what = {s["statement"]: s for s in pipemoe["statements"]}
    assert by_what["layers whose passes have different best counts, 32 GPUs"]["verdict"] == "holds"
    assert by_what["chunks of B 8, L 1024, M 4096, H 8192, k 2 on 32 ranks"]["verdict"] == "misprint"


def check_choices():
    """Parm's and PipeMoE's choices on MoNTA's own mesh: two nodes of eight, an expert on a node's eight ranks; beside the prices of piper moe."""
    answer = json.loads(studies("moe", *LAYER, "--json"))
    priced = json.loads(run(PIPER, "moe", *LAYER, "--json"))
    schedules = {s["schedule"]: s for s in priced["schedules"]}
    assert {key: answer[key] for key in ("model", "cluster", "layer", "ranks", "tokens", "best")} == {key: priced[key] for key in (
        "model", "cluster", "layer", "ranks", "tokens", "best")}, answer
    choice = answer["algorithm_1"]
    assert {choice["corrected"], choice["as_printed"]} <= {"parm-s1", "parm-s2"}, choice
    assert choice["by_price"] == min(NAMES[1:4], key=lambda name: schedules[name]["seconds"]), choice
    assert [fit["collective"] for fit in choice["fits"]] == ["ESP-AllGather", "ESP-AllReduce", "EP-AlltoAll", "EP&ESP-AlltoAll", "MP-AllGather", "Overlap"]
    assert all(fit["alpha_seconds"] > 0 and fit["beta_seconds_per_element"] > 0 and fit["worst_error"] < 0.2 for fit in choice["fits"]), choice
    pipemoe = answer["pipemoe"]
    assert pipemoe["own_num_chunks"] == schedules["chunked"]["num_chunks"] and pipemoe["own_seconds"] == schedules["chunked"]["seconds"], pipemoe
    assert min(pipemoe["seconds"], pipemoe["seconds_by_both_passes"]) >= pipemoe["own_seconds"] and 1 <= pipemoe["num_chunks"] <= 32, pipemoe
    text = studies("moe", *LAYER)
    for piece in ("Parm's Algorithm 1", "as printed", "PipeMoE's model takes", "in Piper's own", "monta-o3"):
        assert piece in text, piece
    assert "algorithm_1" not in json.loads(studies("moe", *H100, "--json"))  # without tp S1 and S2 are one exchange


def check_equations():
    axes = [*H100, "--pp", "2", "--ep", "8", "--dp", "8", "--sequence", "4096", "--num-micro-batches", "4"]
    answer = json.loads(studies("estimate", *axes, "--json"))
    paper, predicted = answer["paper"], answer["predicted"]
    priced = json.loads(run(PIPER, "estimate", *axes, "--json"))
    # Eq. 4 with alpha 2 for a sequence a micro-batch on a GPU, so 8 in one EP group: 32 layers, d 4096, H 32, 8 experts of d_ffn 14336, k 2, s 4096.
    d, f, s, b = 4096, 14336, 4096, 8
    state = 16 * 4 * d * d + 16 * 3 * 8 * d * f / 8
    activations = 12 * b * s * d + 2 * b * 32 * s + 2 * b * s * 2 * (3 * f + d) / 8
    assert abs(paper["memory_bytes"] / (32 / 2 * (state + 2 * activations)) - 1) < 1e-12, paper
    assert paper["memory_equation"] == "eq. 4" and paper["alpha"] == 2 and paper["unknown_degrees"] == [], paper
    assert "paper" not in priced and predicted["peak_bytes"] == priced["predicted"]["peak_bytes"], (predicted, priced["predicted"])
    assert json.loads(studies("estimate", *axes, "--schedule", "gpipe", "--json"))["paper"]["memory_equation"] == "eq. 3"
    more = json.loads(studies("estimate", *axes, "--ffn-values", "4", "--no-flash-attention", "--json"))["paper"]
    assert more["memory_bytes"] > paper["memory_bytes"] and more["all_to_all_seconds"] == paper["all_to_all_seconds"]
    text = studies("estimate", *axes, "--tp", "2")
    assert "paper, as printed: stage 0" in text and "the equations do not know tp 2" in text, text


def check_migration():
    table = json.loads(studies("migrate", "--json"))
    assert [row["printed_size"] for row in table if row["model"].startswith("DeepSeek-V3")] == [21], table
    assert "GLaM's size is a misprint for 103.08" in studies("migrate")
    (row,), (moved,) = json.loads(studies("migrate", *H100, "--json")), json.loads(run(PIPER, "migrate", *H100, "--json"))
    assert row["paper_bytes"] * 12 == row["bytes"] * 16 and row["bytes"] == moved["bytes"] and row["seconds"] == moved["seconds"], (row, moved)
    assert "paper_bytes" not in moved and moved["expert_bytes"] * 8 == moved["bytes"] * 8, moved
    assert "go together" in studies("migrate", "--model", "mixtral-8x7b", code=2)


def check_phases():
    phases = json.loads(studies("phases", "--json"))["phases"]
    assert len(phases) == 10 and [p["name"] for p in phases if not p["holds"]] == ["dispatch(F)"], phases
    assert "miss: dispatch(F)" in studies("phases")


def check_old_words():
    for old, new in ((["validate", "--statements"], "validate --statements moved: run piper-studies statements"),
                     (["validate", "--statements", "--json"], "validate --statements moved: run piper-studies statements"),
                     (["validate", "--phases"], "validate --phases moved: run piper-studies phases"),
                     (["validate", "--phases", "run.json"], "validate --phases moved: run piper-studies phases"),
                     (["moe", "--paper", "monta"], "moe --paper moved: run piper-studies statements parm (or monta, pipemoe, hybridep)"),
                     (["estimate", *H100, "--ffn-values", "4"], "estimate --ffn-values moved: run piper-studies estimate --ffn-values"),
                     (["estimate", *H100, "--no-flash-attention"], "estimate --no-flash-attention moved: run piper-studies estimate --no-flash-attention"),
                     (["migrate"], "--model and --cluster are required; the table of the Piper paper moved: run piper-studies migrate")):
        assert run(PIPER, *old, code=2) == f"piper: {new}\n", (old, run(PIPER, *old, code=2))
    for wrong, said in ((["statements", "hybrid"], "hybrid"), (["statement"], "did you mean 'statements'"), (["phases", "absent.json"], "absent.json")):
        lines = studies(*wrong, code=2).splitlines()
        assert len(lines) == 1 and said in lines[0], lines


def main():
    check_old_words()
    check_statements()
    check_choices()
    check_equations()
    check_migration()
    check_phases()
    print("studies_command: passed")


if __name__ == "__main__":
    main()
