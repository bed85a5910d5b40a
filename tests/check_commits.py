#!/usr/bin/env python3
"""Every commit after the one that added this file is a letter to the next owner: a subject of at most 72 characters without a full stop,
that begins with a capital and not with a word in -ed or -ing; an empty line; a body that says why and "Signature: unchanged", or "Signature:
moves" with the cause. Skipped, and said, where there is no history.

    tests/check_commits.py              the history of this checkout
    tests/check_commits.py --self-test"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
LONGEST = 72


def problems(message):
    lines = message.rstrip("\n").split("\n")
    subject, body = lines[0], lines[1:]
    found = []
    if len(subject) > LONGEST:
        found.append(f"the subject has {len(subject)} characters; allowed: {LONGEST}")
    if subject.endswith("."):
        found.append("the subject ends in a full stop")
    first = subject.split(" ")[0]
    if not first[:1].isupper() and not re.fullmatch(r"[a-z_/]+:", first):  # "compare: say first what ..."
        found.append("the subject does not begin with a capital, or a command's name and a colon")
    if re.fullmatch(r"[A-Z][a-z]+(ed|ing)", first) and first not in ("Need", "Speed", "Embed", "Feed", "Shed", "Bring"):
        found.append(f"the subject begins with '{first}'; allowed: an imperative")
    if body and body[0]:
        found.append("no empty line behind the subject")
    said = [line for line in body if re.match(r"Signature: (unchanged|moves)\b", line)]
    if not said:
        found.append("no line 'Signature: unchanged' or 'Signature: moves ...'")
    if len([line for line in body if line.strip()]) <= len(said):
        found.append("the body does not say why")
    return found


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)


def self_test():
    good = "Write one start script\n\nTwo of them had two launchers.\n\nSignature: unchanged.\n"
    assert not problems(good)
    for change, what in ((lambda m: "x" * 73 + m, "characters"), (lambda m: m.replace("script\n", "script.\n", 1), "full stop"),
                         (lambda m: m.replace("Write", "Added", 1), "imperative"), (lambda m: m.replace("Signature: unchanged.", ""), "Signature"),
                         (lambda m: m.replace("Two of them had two launchers.\n\n", ""), "why"), (lambda m: m.replace("\n\n", "\n", 1), "empty line")):
        assert any(what in line for line in problems(change(good))), what
    print("check_commits: the self-test passes")


def main():
    if "--self-test" in sys.argv:
        return self_test()
    added = git("log", "--diff-filter=A", "--format=%H", "--", "tests/check_commits.py")
    if added.returncode != 0 or not added.stdout.strip() or git("rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        return print("check_commits: skipped: no history to read")
    first = added.stdout.split()[-1]
    commits = git("log", "--no-merges", "--format=%H", f"{first}..HEAD").stdout.split()
    wrong = 0
    for commit in commits:
        for problem in problems(git("log", "-1", "--format=%B", commit).stdout):
            print(f"check_commits: {commit[:8]}: {problem}", file=sys.stderr)
            wrong += 1
    print(f"check_commits: {len(commits)} commits, {wrong} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
