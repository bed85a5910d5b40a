#!/usr/bin/env python3
"""clang-tidy (.clang-tidy) over what was changed lately, as far as a minute of processor time goes.

    tests/tidy.py BUILD [SECONDS]   BUILD is a configured folder with compile_commands.json; nothing need be built in it
    tests/tidy.py --self-test       proves that the check can fail

It reads the sources that the last 5 commits of HEAD changed, the newest first, and for a changed header the source of the same name; tests
are left out. A finding fails the check. A source that clang cannot compile (gcc builds this tree) is named and fails nothing, as is what the
time does not reach. In .clang-tidy each check that is left out must have a line with the reason, and no other check may have one."""
import json
import pathlib
import re
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile

from switches import skip

ROOT = pathlib.Path(__file__).resolve().parents[1]
COMMITS = 5
LIMIT = 60  # seconds of processor time
VERSION = "14"  # The .clang-tidy is written for the checks of this one; others know more.
FINDING = re.compile(r"^\S+:\d+:\d+: (?:warning|error): (.*) \[([\w.,-]+)\]$", re.MULTILINE)
NOT_CLANGS = "clang-diagnostic-error"  # the name of what the compiler in clang-tidy refuses


def problems_of_list(text):
    """Of .clang-tidy: checks that are left out without a line `# check: reason`, and such lines about others."""
    left_out = set(re.findall(r"^ *-([a-z]+-[a-z-]+),?$", text, re.MULTILINE))
    explained = set(re.findall(r"^# ([a-z]+-[a-z-]+): \S", text, re.MULTILINE))
    return [f"{name} is left out without a reason" for name in sorted(left_out - explained)] + \
        [f"{name} has a reason and is not left out" for name in sorted(explained - left_out)]


def require_clang_tidy():
    try:
        version = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True).stdout
    except FileNotFoundError:
        skip("clang-tidy is not here (Debian: clang-tidy)")
    number = re.search(r"version (\d+)", version)[1]
    if number != VERSION:
        skip(f"clang-tidy is version {number}, and .clang-tidy is written for {VERSION}")


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)


def changed_sources():
    # A file that was moved as it is has not changed: with -M100% no other counts as renamed.
    log = git("log", f"-{COMMITS}", "--no-merges", "-M100%", "--diff-filter=AM", "--name-only", "--format=")
    if log.returncode or git("rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        skip("there is no history to read")
    names = re.findall(r"^((?:piper|bench|studies|testing)/.*)\.(?:cpp|h)$", log.stdout, re.MULTILINE)
    sources = [ROOT / f"{name}.cpp" for name in names]
    return [path for path in dict.fromkeys(sources) if path.exists() and not path.stem.endswith("_test")]


def commands(build):
    """How each source is compiled: {path: (folder, flags)}. Where sources are compiled in batches, it is how their batch is."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        is_batch = path.parent.name == "Unity"
        for each in re.findall(r'^#include "(.*)"', path.read_text(), re.MULTILINE) if is_batch else [path]:
            found.setdefault(pathlib.Path(each).resolve(), (entry["directory"], flags_of(entry["command"])))
    return found


def flags_of(command):
    """The flags that decide what a source says; not warnings, precompiled headers, or what only gcc knows."""
    words, kept = iter(shlex.split(command)), []
    for word in words:
        if word == "-isystem":
            kept += [word, next(words)]
        elif word.startswith(("-I", "-D", "-U", "-std=")):
            kept.append(word)
    return kept


def seconds_used():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tidy(path, folder, flags, seconds):
    """clang-tidy on one source. It is ended when it has used so many seconds of processor time."""
    limit = max(1, int(seconds))
    return subprocess.run(["clang-tidy", "--quiet", f"--config-file={ROOT / '.clang-tidy'}", str(path), "--", *flags], cwd=folder,
                          capture_output=True, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1)))


class Result:
    def __init__(self):
        self.found, self.unread, self.left = [], {}, []  # paths with findings; {path: why it could not be read}; paths not reached

    def num_read(self, sources):
        return len(sources) - len(self.left) - len(self.unread)


def check(sources, limit=LIMIT):
    """Reads [(path, folder, flags)], one after the other, while the time lasts."""
    result, spent = Result(), []
    for number, (path, folder, flags) in enumerate(sources):
        used = seconds_used()
        # None is begun that would not end in time if it took what most took.
        done = tidy(path, folder, flags, limit - used) if used + statistics.median(spent or [0]) < limit else None
        if done is None or done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            result.left = [path for path, *_ in sources[number:]]
            break
        spent.append(seconds_used() - used)
        said = FINDING.findall(done.stdout)
        refused = [text for text, name in said if name == NOT_CLANGS]
        if refused or (done.returncode and not said):
            result.unread[path] = refused[0] if refused else f"it ended with {done.returncode}"
        if any(name != NOT_CLANGS for _, name in said):
            result.found.append(path)
            print(done.stdout)
    return result


def self_test():
    text = (ROOT / ".clang-tidy").read_text()
    assert not problems_of_list(text), problems_of_list(text)
    name = re.search(r"^# ([a-z]+-[a-z-]+): ", text, re.MULTILINE)[1]
    assert problems_of_list(text.replace(f"# {name}: ", "# ")) == [f"{name} is left out without a reason"]
    assert problems_of_list(text.replace(f"  -{name},\n", "")) == [f"{name} has a reason and is not left out"]
    require_clang_tidy()
    good = ("#include <utility>\nstruct Text {\n  Text(Text&&) noexcept;\n  int size() const;\n};\n"
            "int size(Text a) {\n  const Text b(std::move(a));\n  return b.size();\n}\n")
    with tempfile.TemporaryDirectory() as folder:
        sources = []
        for stem, source in (("good", good), ("moved", good.replace("b.size", "a.size")), ("unreadable", good.replace("return", "retrun"))):
            path = pathlib.Path(folder, stem + ".cpp")
            path.write_text(source)
            sources.append((path, folder, ["-std=c++20"]))
        result = check(sources)
        assert [path.stem for path in result.found] == ["moved"], result.found
        assert [path.stem for path in result.unread] == ["unreadable"], result.unread
        assert len(check(sources, limit=0).left) == len(sources)
    print("tidy: the self-test passes; the finding above is its own")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    problems = problems_of_list((ROOT / ".clang-tidy").read_text())
    if problems:
        print("\n".join(f"tidy: .clang-tidy: {problem}" for problem in problems))
        return 1
    require_clang_tidy()
    known = commands(pathlib.Path(sys.argv[1]).resolve())
    assert len(known) > 300, len(known)
    sources = [(path, *known[path]) for path in changed_sources() if path in known]
    result = check(sources, *map(float, sys.argv[2:]))
    for path, why in result.unread.items():
        print(f"tidy: {path.relative_to(ROOT)} could not be read by clang-tidy: {why}")
    if result.left:
        names = [str(path.relative_to(ROOT)) for path in result.left]
        print(f"tidy: the time did not reach {len(names)}: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}")
    read = result.num_read(sources)
    print(f"tidy: {read} of {len(sources)} changed sources read in {seconds_used():.0f} s, {len(result.found)} with findings")
    return 1 if result.found or (result.unread and read == 0) else 0


if __name__ == "__main__":
    sys.exit(main())
