#!/usr/bin/env python3
"""Lines of code of what ships: piper/ without tests, comments and blank lines. They may not grow without a word: the last line of
tests/golden/house.txt says how many there may be, and why. And a habit of comments that is over: none begins with "Of ", without a verb.

  tests/house.py                what there is, by folder; fails where piper/ has more than its last line allows
  tests/house.py --at COMMIT    the same of a commit of the history, written as today's .clang-format writes
  tests/house.py --self-test    proves that the check can fail"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
ALLOWED = ROOT / "tests" / "golden" / "house.txt"
# A string or a character first, so that what looks like a comment in one is none.
TOKEN = re.compile(r'R"\((?s:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*(?s:.*?)\*/')
TOPS = ("piper", "bench", "studies", "testing")


def lines_of(text):
    code = TOKEN.sub(lambda m: re.sub(r"[^\n]", "", m[0]) if m[0].startswith("/") else m[0], text)
    return sum(1 for line in code.splitlines() if line.strip())


def is_test(path):
    return path.stem.endswith("_test")


def count(root):
    """{top: {folder: [what ships, tests]}}"""
    found = {}
    for top in TOPS:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu"):
                parts = path.relative_to(root).parts
                folder = found.setdefault(top, {}).setdefault(parts[1] if len(parts) > 2 else ".", [0, 0])
                folder[is_test(path)] += lines_of(path.read_text())
    return found


def allowed(text):
    """The number of the last line, and its reason."""
    last = [line for line in text.splitlines() if line and not line.startswith("#")][-1]
    number, _, why = last.partition(" ")
    assert why.strip(), f"{ALLOWED.name}: '{last}' says no reason"
    return int(number), why


def problem_of(lines, text):
    most, why = allowed(text)
    if lines <= most:
        return None
    return (f"piper/ has {lines} lines of code, {lines - most} more than {ALLOWED.relative_to(ROOT)} allows ({most}: {why}); "
            "take as many away, or add a line there that says what they are for")


def without_verb(text):
    """The numbers of lines that are comments and begin with "Of "."""
    return [number for number, line in enumerate(text.splitlines(), 1) if re.match(r"\s*//+ Of ", line)]


def comments_without_verb():
    names = subprocess.run(["git", "ls-files", *TOPS, "tests"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    paths = [name for name in names if name.endswith((".h", ".cpp", ".cu")) and (ROOT / name).exists()]
    return [f"{name}:{number}" for name in paths for number in without_verb((ROOT / name).read_text())]


def show(found):
    for top, folders in found.items():
        print(f"{top + '/':<14}{sum(f[0] for f in folders.values()):>8}{sum(f[1] for f in folders.values()):>8} of tests")
        for name, (ships, tests) in sorted(folders.items(), key=lambda f: -f[1][0]):
            print(f"  {name:<12}{ships:>8}{tests:>8}")


def at(commit):
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit, "piper"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        (pathlib.Path(folder) / ".clang-format").write_bytes((ROOT / ".clang-format").read_bytes())
        files = [str(p) for p in pathlib.Path(folder).rglob("*") if p.suffix in (".h", ".cpp", ".cu")]
        subprocess.run(["clang-format", "-i", *files], check=True)
        show(count(pathlib.Path(folder)))


def self_test():
    assert lines_of("// one\nint a;  // b\n\n/* c\nd */\nauto s = \"// no comment\";\n") == 2
    assert lines_of("/* a */ int b;\n'\"'; // c\n\"/*\"; int d; /* */\n") == 3
    assert problem_of(11, "# words\n9 first\n10 then\n") and not problem_of(10, "9 first\n10 then\n")
    assert without_verb("// Of all\nint a;  // Of b\n  /// Of c\n// Offers\n") == [1, 3]
    try:
        allowed("10\n")
    except AssertionError:
        print("house: the check can fail")
    else:
        raise AssertionError("a number without a reason is taken")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:2] == ["--at"]:
        return at(sys.argv[2])
    found = count(ROOT)
    show(found)
    problem = problem_of(sum(f[0] for f in found["piper"].values()), ALLOWED.read_text())
    if problem:
        sys.exit(f"house: {problem}")
    if places := comments_without_verb():
        sys.exit(f"house: comments that begin with 'Of' say no sentence: {', '.join(places)}; begin with a subject and a verb")


if __name__ == "__main__":
    main()
