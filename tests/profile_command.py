#!/usr/bin/env python3
"""`piper profile`: killed and continued, its curves in the cluster file, what prices leave of them, and the page."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

PIPER = os.environ.get("PIPER", "build/release/piper")
SHORT = ["--ranks", "2", "--budget-seconds"]


def piper(*arguments, code=0):
    run = subprocess.run([PIPER, *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == code, (arguments, run.returncode, run.stderr)
    return run.stdout if code == 0 else run.stderr


def killed(out, points):
    """A profile that is killed once so many points are in its partial file."""
    partial = pathlib.Path(f"{out}.partial")
    run = subprocess.Popen([PIPER, "profile", *SHORT, "30", "--out", str(out)], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
    while run.poll() is None and (not partial.exists() or partial.read_text().count("\n") <= points):
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL, "the profile ended before it could be killed"
    return partial


def points_of(cluster):
    return {(curve["name"], *at): (seconds, samples)
            for curve in cluster["curves"]
            for *at, seconds, samples in zip(*(curve["points"][axis] for axis in curve["axes"]), curve["points"]["seconds"],
                                             curve["points"]["num_samples"])}


def continued(folder):
    out = folder / "here.json"
    partial = killed(out, 30)
    lines = [json.loads(line) for line in partial.read_text().splitlines()[1:31]]
    assert "'ranks' was 2 then and is 3 now" in piper("profile", "--ranks", 3, "--out", out, code=2)
    answer = json.loads(piper("profile", *SHORT, 2, "--out", out, "--json"))
    assert answer["num_restored"] >= 30, answer["num_restored"]
    assert not partial.exists(), "the partial file outlived its profile"
    points = points_of(answer["cluster"])
    for line in lines:
        assert points[line["curve"], *line["at"]] == (line["seconds"], line["num_samples"]), line
    assert json.loads(out.read_text()) == {"written_by": "piper", **answer["cluster"]}
    partial.write_text("something else\n")
    assert "was not written by Piper" in piper("profile", *SHORT, 2, "--out", out, code=2)
    return out, partial


def checked(cluster):
    for curve in cluster["curves"]:
        points = curve["points"]
        for low, seconds, high, worst in zip(points["seconds_low"], points["seconds"], points["seconds_high"], points["seconds_worst"]):
            assert 0 < low <= seconds <= high <= worst, curve["name"]
        assert all(n >= 3 for n in points["num_samples"]), curve["name"]
    links = {curve["name"]: curve["fit"] for curve in cluster["curves"] if "fit" in curve}
    assert sorted(links) == ["all-reduce", "all-to-all", "point-to-point"], links
    assert cluster["numbers"]["all_to_all_bytes_per_second"] == links["all-to-all"]["bandwidth_bytes_per_second"]
    gemm = next(curve for curve in cluster["curves"] if curve["name"] == "gemm.fp32")
    assert cluster["compute"]["fp32"]["peak_flops_per_second"] == max(
        amount / seconds for amount, seconds in zip(gemm["points"]["amount"], gemm["points"]["seconds"]))


def outside(out):
    """A prediction says where it leaves the measured points, and only there."""
    axes = ["--model", "piper-10m", "--cluster", out, "--micro-batch", 32, "--sequence", 256]
    found = json.loads(piper("estimate", *axes, "--json"))["outside_measured"]
    rows = [entry for entry in found if entry["curve"] == "compute.fp32.gemm" and entry["axis"] == "m"]
    assert rows and rows[0]["asked_high"] >= 32 * 256 and rows[0]["measured_high"] == 2048, found
    assert "outside of what was measured (the nearest edge holds): compute.fp32.gemm" in piper("estimate", *axes)
    planned = json.loads(piper("plan", "--model", "piper-10m", "--cluster", out, "--devices", 2, "--sequence", 256, "--global-batch", 8,
                               "--json"))
    assert isinstance(planned["outside_measured"], list)
    inside = json.loads(piper("estimate", "--model", "piper-10m", "--cluster", "frontier", "--trainer", "piper", "--json"))["outside_measured"]
    assert inside == [], inside


def other_precisions(folder, no_partial_file):
    """A file for two precisions has figures for both, and planning and training in each goes by them. With --fresh nothing is taken over, and
    what is no partial file is left alone without --force."""
    out = folder / "two.json"
    assert "is 'fp8', which Piper prices and does not execute; allowed: fp32, bf16, fp64" in piper("profile", "--precision", "fp8", code=2)
    assert "names bf16 twice" in piper("profile", "--precision", "bf16,bf16", code=2)
    # Nothing to take over.
    assert json.loads(piper("profile", *SHORT, 1, "--precision", "bf16,fp32", "--out", out, "--json"))["num_restored"] == 0
    cluster = json.loads(out.read_text())
    assert sorted(cluster["compute"]) == ["bf16", "fp32"], cluster["compute"].keys()
    factors = {name.rsplit(".", 1)[1] for name in cluster["numbers"] if name.startswith("measured_over_priced.experts.")}
    assert factors == {"bf16", "fp32"}, cluster["numbers"]
    seconds = {}
    for precision in ("fp32", "bf16"):
        plan = json.loads(piper("plan", "--model", "piper-10m", "--cluster", out, "--devices", 2, "--sequence", 64, "--global-batch", 4,
                                "--precision", precision, "--json"))
        seconds[precision] = plan["strategies"][0]["predicted"]["step_seconds"]
        run = json.loads(piper("train", "--model", "piper-10m", "--cluster", out, "--pp", 1, "--ep", 2, "--dp", 2, "--sequence", 32, "--global-batch", 2,
                               "--precision", precision, "--steps", 2, "--run", folder / precision, "--json"))
        assert run["comparison"]["predicted_step_seconds"] > 0, run["comparison"]
    assert seconds["fp32"] != seconds["bf16"], seconds
    only = folder / "bf16.json"
    fresh = ["--resume", no_partial_file, "--fresh", "--json"]
    assert "was not written by Piper" in piper("profile", *SHORT, 1, "--out", only, *fresh, code=2)
    assert no_partial_file.read_text() == "something else\n"
    fresh.append("--force")
    # Beside another one, which holds this name: each says so.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind("\0piper profile")
        run = subprocess.run([PIPER, "profile", *SHORT, "1", "--precision", "bf16", "--out", str(only), *map(str, fresh)], capture_output=True, text=True)
        assert run.returncode == 0 and json.loads(run.stdout)["num_restored"] == 0, run
        assert "warning: another `piper profile` is measuring on this machine" in run.stderr and other.recv(1) == b"p", run.stderr
    plan = json.loads(piper("plan", "--model", "piper-10m", "--cluster", only, "--devices", 2, "--sequence", 64, "--global-batch", 4, "--json"))
    assert plan["strategies"][0]["precision"] == "bf16", plan["strategies"][0]
    run = json.loads(piper("train", "--model", "piper-10m", "--cluster", only, "--pp", 1, "--ep", 1, "--dp", 2, "--sequence", 32, "--global-batch", 2,
                           "--steps", 2, "--run", folder / "only", "--json"))
    assert json.loads((folder / "only" / "strategy.json").read_text())["precision"] == "bf16"
    assert run["comparison"]["predicted_step_seconds"] > 0, run["comparison"]


def what_does_not_fit(folder):
    """Said before this machine is profiled, which takes seconds: activations, too."""
    axes = ["--pp", 1, "--ep", 1, "--dp", 1, "--run", folder / "none"]
    for flags, said in ((["--model", "mixtral-8x7b", *axes], "mixtral-8x7b on 1 ranks of this machine needs"),
                        (["--model", "piper-10m", *axes, "--sequence", 4096, "--micro-batch", 8192, "--global-batch", 8192], "--recompute full")):
        refused = piper("train", *flags, code=2)
        assert said in refused and "is available" in refused and "profile" not in refused and refused.count("\n") == 1, refused


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        out, no_partial_file = continued(folder)
        cluster = json.loads(out.read_text())
        checked(cluster)
        outside(out)
        other_precisions(folder, no_partial_file)
        what_does_not_fit(folder)
        page = pathlib.Path(piper("report", out).strip())
        html = page.read_text()
        assert html.count("<svg") == 4 and "<script" not in html, html.count("<svg")
        cluster["curves"][0]["points"]["seconds"][3] = None
        (folder / "holes.json").write_text(json.dumps(cluster))
        refused = piper("estimate", "--model", "piper-10m", "--cluster", folder / "holes.json", code=2)
        assert refused.count("\n") == 1 and "has 1 hole (null), the first at entry 3" in refused, refused
    print("profile_command: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
