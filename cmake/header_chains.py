#!/usr/bin/env python3
"""Writes the sources that show that every header compiles by itself. Usage: header_chains.py ROOT FOLDER_TO_WRITE NAME_OF_FOLDER ...

If header B includes header A, directly or not, then A may stand in front of B in one source: B brings A by itself anyway. So one source
checks a chain of headers, each of which includes the one before it. A maximum matching gives the fewest chains (Dilworth's theorem). All
headers of a chain are of one kind, since each kind has a precompiled header of its own. The program prints a line for each source: its
kind and its path."""
import os
import pathlib
import re
import sys

ROOT, OUT = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
INCLUDE = re.compile(r"#include <([^>]*)>")
DEAR = (("torch", re.compile(r"(ATen|c10|torch)/")), ("json", re.compile(r"nlohmann/json\.hpp$")))


def kind(dear):
    return "_".join([word for word, _ in DEAR if word in dear] or ["plain"]) + "_headers"


class Headers:
    def __init__(self, folders):
        self.includes, self.dear, self.reached = {}, {}, {}
        paths = sorted(path for folder in folders for path in self.place(folder).rglob("*.h"))
        for path in paths:
            self.read(str(path.relative_to(ROOT)))
        self.all = sorted(header for header in self.includes if {*header.split("/")[:2]} & {*folders} and "mpi" not in self.dear[header])
        for header in self.all:
            self.reached[header] = self.reach(header)

    @staticmethod
    def place(folder):
        """Where a folder lies: in piper/, or beside it."""
        return ROOT / "piper" / folder if (ROOT / "piper" / folder).exists() else ROOT / folder

    def read(self, header):
        if header in self.includes:
            return
        self.includes[header], self.dear[header] = [], set()
        for name in INCLUDE.findall((ROOT / header).read_text()):
            self.dear[header].update(word for word, pattern in DEAR if pattern.match(name))
            if name == "mpi.h":  # of plug-ins, which alone have an MPI
                self.dear[header].add("mpi")
            if name.startswith(("piper/", "bench/", "studies/", "testing/")) and (ROOT / name).exists():
                self.includes[header].append(name)
                self.read(name)

    def reach(self, header):
        found, left = set(), [header]
        while left:
            for name in self.includes[left.pop()]:
                if name not in found:
                    found.add(name)
                    left.append(name)
        return found

    def kind_of(self, header):
        return kind(set().union(self.dear[header], *(self.dear[name] for name in self.reached[header])))

    def chains(self, group):
        behind = {header: [other for other in group if header in self.reached[other]] for header in group}
        before = {}  # of a header: the one that it stands behind

        def place(header, tried):
            for other in behind[header]:
                if other not in tried:
                    tried.add(other)
                    if other not in before or place(before[other], tried):
                        before[other] = header
                        return True
            return False

        for header in group:
            place(header, set())
        for last in sorted(set(group) - set(before.values())):
            chain = [last]
            while chain[-1] in before:
                chain.append(before[chain[-1]])
            yield chain[::-1]


def main():
    headers = Headers(sys.argv[3:])
    kinds = {}
    for header in headers.all:
        kinds.setdefault(headers.kind_of(header), []).append(header)
    OUT.mkdir(parents=True, exist_ok=True)
    written = set()
    for name, group in sorted(kinds.items()):
        for chain in headers.chains(group):
            path = OUT / (re.sub(r"\W", "_", chain[-1]) + ".cpp")
            # Twice: a header without a guard is a fault.
            text = "".join(f"#include <{header}>\n" for header in chain + chain)
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
            written.add(path.name)
            print(name, path)
    for path in OUT.glob("*.cpp"):
        if path.name not in written:
            os.remove(path)


if __name__ == "__main__":
    sys.exit(main())
