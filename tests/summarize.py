#!/usr/bin/env python3
"""What a test run did, and what it left out.

    summarize.py [--strict] JUNIT_FILE...

Reads what `ctest --output-junit` wrote and prints how many tests passed, the slowest of them, and every skip with its reason:
a whole test that exited with 77 (its line `SKIP: reason`), and a case inside a program that passed (its line
`SKIPPED CASE: case: reason`). With --strict a skip that tests/allowed_skips.txt does not allow is a failure.
Exit code 1 when a test failed, when no test ran, or when --strict found such a skip; 2 when a file cannot be read.
"""
import argparse
import pathlib
import re
import sys
import xml.etree.ElementTree

ALLOWED = pathlib.Path(__file__).with_name("allowed_skips.txt")
CASE = re.compile(r"^SKIPPED CASE: (.+)$", re.MULTILINE)
WHOLE = re.compile(r"^SKIP: (.+)$", re.MULTILINE)


class Skip:
    def __init__(self, test, reason):
        self.test, self.reason = test, reason

    def __str__(self):
        return f"{self.test}: {self.reason}"


def reason_of(output):
    """Of a test that skipped as a whole: what it said, else its last line."""
    said = WHOLE.findall(output)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return said[-1] if said else lines[-1] if lines else "it gave no reason"


class Run:
    def __init__(self, paths):
        self.passed, self.failed, self.skips, self.seconds = [], [], [], []
        for path in paths:
            for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
                self.add(case)

    def add(self, case):
        name, output = case.get("name"), case.findtext("system-out") or ""
        self.seconds.append((float(case.get("time") or 0), name))
        if case.find("skipped") is not None:
            self.skips.append(Skip(name, reason_of(output)))
        elif case.get("status") == "run":
            self.passed.append(name)
        else:
            self.failed.append(name)
        self.skips += [Skip(name, said) for said in CASE.findall(output)]


def allowed_skips(path=ALLOWED):
    """Lines `test: part of the reason`, of which `test` may be `*`. After `#` stands why it is allowed."""
    rules = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        rule = line.split("#")[0].strip()
        if not rule:
            continue
        test, colon, reason = rule.partition(":")
        if not colon or not reason.strip():
            sys.exit(f"{path.name}:{number}: '{line}'; allowed: 'test: part of the reason  # why'")
        rules.append((test.strip(), reason.strip()))
    return rules


def is_allowed(skip, rules):
    return any(test in ("*", skip.test) and reason in skip.reason for test, reason in rules)


def self_test():
    """The summary is what --strict rests on: a skip that nothing allows must be seen."""
    text = ("<testsuite><testcase name='a' status='run' time='1'><system-out>fine</system-out></testcase>"
            "<testcase name='b' status='notrun' time='0'><skipped message='77'/><system-out>x\nSKIP: no MPI</system-out></testcase>"
            "<testcase name='c' status='run' time='0'><system-out>SKIPPED CASE: big one: needs --full\n</system-out></testcase>"
            "<testcase name='d' status='fail' time='0'><failure/><system-out/></testcase></testsuite>")
    run = Run([])
    for case in xml.etree.ElementTree.fromstring(text).iter("testcase"):
        run.add(case)
    assert (run.passed, run.failed) == (["a", "c"], ["d"]), (run.passed, run.failed)
    assert [str(s) for s in run.skips] == ["b: no MPI", "c: big one: needs --full"], [str(s) for s in run.skips]
    assert is_allowed(run.skips[0], [("*", "no MPI")]) and not is_allowed(run.skips[0], [("c", "no MPI")])
    assert not is_allowed(run.skips[1], [("c", "big two")]) and is_allowed(run.skips[1], [("c", "big one")])
    allowed_skips()
    print("summarize: the self-test passes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    try:
        run = Run(arguments.files)
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        print(f"summarize: {error}", file=sys.stderr)
        return 2
    slowest = ", ".join(f"{name} {seconds:.0f} s" for seconds, name in sorted(run.seconds, reverse=True)[:8])
    print(f"slowest: {slowest}")
    rules = allowed_skips()
    refused = [skip for skip in run.skips if not is_allowed(skip, rules)]
    for skip in run.skips:
        print(f"{'NOT ALLOWED' if skip in refused else 'skipped'}: {skip}")
    if not run.skips:
        print("nothing was skipped")
    for name in run.failed:
        print(f"FAILED: {name}")
    whole = {skip.test for skip in run.skips} - set(run.passed)
    print(f"{len(run.passed)} passed, {len(run.failed)} failed, {len(whole)} skipped")
    if arguments.strict and refused:
        print(f"summarize: {len(refused)} skips that tests/allowed_skips.txt does not allow", file=sys.stderr)
    return 1 if run.failed or not run.passed or (arguments.strict and refused) else 0


if __name__ == "__main__":
    sys.exit(main())
