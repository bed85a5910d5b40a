#!/usr/bin/env python3
"""The figures of docs/validation.md are what `piper validate` says, to the last digit printed.

usage: validation_figures.py built-in | table [FILES...]

  built-in   the 322 runs that come with Piper against tests/golden/validation.txt (--write renews it: say why in the commit)
  table      the 479 rows of PIPER_MEASURED_RUNS and the 300 of PIPER_FIT_RUNS (default: ../shared/data) against the table of the
             document and against its aims; skipped where the files are not there
"""
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

from switches import skip

ROOT = pathlib.Path(__file__).resolve().parents[1]
PIPER = os.environ.get("PIPER_PLANNER") or os.environ.get("PIPER", "build/release/piper")
DOCUMENT = ROOT / "docs" / "validation.md"
GOLDEN = ROOT / "tests" / "golden" / "validation.txt"
SHARED = ROOT.parent / "shared" / "data"
# A line of the document's table, the key of the summary, and what is aimed at: the most that median, mean and worst may be.
LINES = {"step time, every field stated": ("time_every_field_stated", (0.07, 0.12, None)),
         "step time, fields assumed": ("time_fields_assumed", (None, 0.20, None)),
         "mixtures of experts": ("time_moe", (None, None, None)), "dense": ("time_dense", (None, None, None)),
         "peak memory": ("memory", (None, 0.03, 0.10))}
FITS = {"ran: called feasible": ("ran", "ran_called_feasible", 0.98), "out of memory: called infeasible": ("oom", "oom_called_infeasible", 0.90)}


def validate(*files):
    done = subprocess.run([PIPER, "validate", *map(str, files), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["summary"]


def cells(errors):
    """As the document prints them: rows, median, mean, worst; a worst of ten percent and more without a decimal."""
    worst = errors["worst"] * 100
    return [str(errors["count"]), f"{errors['median']:.1%}", f"{errors['mean']:.1%}", f"{worst:.0f}%" if worst > 10 else f"{worst:.1f}%"]


def built_in(write):
    summary = validate()
    lines = [f"rows {summary['rows']}, priced {summary['priced']}"]
    lines += [f"{name}: {' '.join(cells(summary[key]))}" for name, (key, _) in LINES.items()]
    lines += [f"{group['name']}: {' '.join(cells(group))}" for group in summary["by_source"]]
    text = "\n".join(lines) + "\n"
    if write:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), f"{GOLDEN.name} says:\n{GOLDEN.read_text()}piper validate says:\n{text}"


def check_trainers(rows, priced_by):
    """What a trainer's file says of published runs is what its rows come to, those that carry a constant left out. With "of" they are the rows
    of another profile, which stands for who ran them; `priced_by` gives all rows priced by a trainer."""
    def errors_of(priced, name):
        return [abs(row["step_time_error"]) for own, row in zip(rows, priced)
                if own.get("trainer") == name and row.get("step_time_error") is not None and not row.get("calibration_row")]

    for file in sorted((ROOT / "configs" / "trainers").glob("*.json")):
        said = json.loads(file.read_text()).get("published")
        other = (said or {}).get("of")
        found = errors_of(priced_by(file.stem), other) if other else errors_of(rows, file.stem)
        wanted = {"rows": len(found), "median_error": round(statistics.median(found), 3), **({"of": other} if other else {})} if found else None
        assert said == wanted, f"{file.name} says {said}, piper validate {wanted}"


def document_table():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    return {row[0]: [cell.replace(" ", "") for cell in row[1:]] for row in rows}


def table():
    measured = pathlib.Path(os.environ.get("PIPER_MEASURED_RUNS", SHARED / "measured_runs.json"))
    fits = pathlib.Path(os.environ.get("PIPER_FIT_RUNS", SHARED / "fit_runs.json"))
    for file in (measured, fits):
        if not file.exists():
            skip(f"no measured runs: {file.name} of ../shared/data is not there")
    summary, fit, printed = validate(measured), validate(fits)["fit"], document_table()
    said = re.search(r"^(\d+) rows \((\d+) of grade A and A-\), (\d+) priced \((\d+),", DOCUMENT.read_text(), re.MULTILINE)
    assert [int(n) for n in said.groups()] == [summary[k] for k in ("rows", "grade_a", "priced", "grade_a_priced")], said.group()
    for line, (key, aims) in LINES.items():
        errors = summary[key]
        assert printed[line][:4] == cells(errors), f"{line}: the document says {printed[line]}, piper validate {cells(errors)}"
        for name, aim in zip(("median", "mean", "worst"), aims):
            assert aim is None or errors[name] <= aim, f"{line}: {name} {errors[name]:.1%}, aimed at {aim:.0%}"
    assert summary["memory_rows_beyond_10_percent"] == 0
    for line, (of, called, aim) in FITS.items():
        part = fit[called] / fit[of]
        assert printed[line][:2] == [str(fit[of]), f"{part:.1%}"], f"{line}: the document says {printed[line]}, piper validate {part:.1%}"
        assert part >= aim, f"{line}: {part:.1%}, aimed at {aim:.0%}"

    def priced_by(*trainer):
        done = subprocess.run([PIPER, "validate", str(measured), *trainer, "--json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["rows"]

    check_trainers(priced_by(), lambda trainer: priced_by("--trainer", trainer))
    print(f"validation: {summary['rows']} and {sum(fit[k] for k in ('ran', 'oom'))} rows as the document says, aims met")


if __name__ == "__main__":
    if sys.argv[1] == "built-in":
        built_in("--write" in sys.argv)
    else:
        table()
