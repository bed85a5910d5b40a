#!/usr/bin/env python3
"""docs/cli.md (docs/studies.md of piper-studies) is held to `--help`: every command, nested ones too, has a section; every flag and argument of it stands in a table of that
section with the text that --help prints, and no section names a flag or a command that is not there. The command lines of README, CONTRIBUTING
and the other pages of docs/ are read, too.

  PIPER=build/release/piper tests/cli_reference.py           compares
  PIPER=build/release/piper tests/cli_reference.py --write   rewrites the rows of the tables from --help: changed texts in place, new flags
                                                             at the end of the section's last table, flags that are gone removed
  PIPER=build/release/piper tests/cli_reference.py --self-test  breaks the page in each way and sees that it is said"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PIPER = str(pathlib.Path(os.environ.get("PIPER", "build/release/piper")).resolve())
PROGRAM = pathlib.Path(PIPER).name
REFERENCE = {"piper-studies": "docs/studies.md"}.get(PROGRAM, "docs/cli.md")
HELP_COLUMN = 30  # where --help begins its texts
# A line "Also [these](#anchor): `--a`, `--b`" of a section: flags whose rows stand in the shared section of that anchor.
SHARED = re.compile(r"Also \[[^]]*\]\((?:cli\.md)?#([a-z-]+)\): ")
# What CLI11 prints of a value besides its name: what is checked, the default.
CHECK = r":(?:(?:INT|FLOAT) in \[[^]]*\]|\{([^}]*)\}|FILE|DIR|POSITIVE|PATH\(existing\))"
DEFAULT = r"=(\[[^]]*\]|\S+)"


class Help:
    """What `piper PATH --help` prints: a row of the table for every flag and argument, by its first name, and the commands below."""

    def __init__(self, path):
        printed = subprocess.run([PIPER, *path, "--help"], capture_output=True, text=True, check=True).stdout.splitlines()
        self.rows, self.names, self.commands = {}, set(), []
        part = ""
        for line, after in zip(printed, [*printed[1:], ""]):
            if re.match(r"\S", line):
                part = line
            elif part == "Subcommands:" and re.match(r"  \S", line):
                self.commands.append(line.split()[0])
            elif part in ("Options:", "Positionals:") and re.match(r"  \S", line):
                head, text = line, ""
                if after.startswith(" " * HELP_COLUMN):  # too long a head has its text below
                    text = after
                elif line[HELP_COLUMN - 1:HELP_COLUMN] == " ":
                    head, text = line[:HELP_COLUMN], line[HELP_COLUMN:]
                names = head.split()[0].split("{")[0].split(",")
                self.names |= set(names)
                if "--help" not in names:
                    self.rows[names[0]] = render(head.strip(), text.strip(), part == "Positionals:")


def render(head, text, is_argument):
    """A row of the table: | `--flag VALUE` | text (what is allowed; default) |."""
    names, _, value = head.partition(" ")
    names, notes = re.sub(r"\{.*?\}", "", names), []
    for word, note in ((r"\bREQUIRED\b", "required"), (r"\bExcludes: (\S+)", r"not with `\1`"), (CHECK, r"one of \1"), (DEFAULT, r"default: \1")):
        found = re.search(word, value)
        if found:
            value = value.replace(found.group(0), "")
            if found.groups() != (None,):
                note = found.expand(note).replace("[", "").replace("]", "")
                notes.append(note.replace(",", ", ") if word == CHECK else note)
    is_required = "required" in notes
    if is_argument:
        notes = [note for note in notes if note != "required"]
        shown = names if is_required else f"[{names}]"
    else:
        shown = " ".join([names, *value.split()])
    cell = f"{text} ({'; '.join(notes)})".strip() if notes else text
    return "| `{}` | {} |".format(shown.replace("|", "\\|"), cell.replace("|", "\\|"))


def all_help(path=()):
    """Of every command, by its words: ("bench", "moe")."""
    here = Help(path)
    found = {path: here}
    for name in here.commands:
        found |= all_help((*path, name))
    return found


def anchor(heading):
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


def sections(text):
    """(heading, first line number, lines) of every section of the reference."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        heading = re.match(r"#+ (.*)", line)
        if heading:
            found.append((heading.group(1), number, []))
        elif found:
            found[-1][2].append((number, line))
    return found


def shared_elsewhere():
    """The sections of docs/cli.md to which another program's page points."""
    return [] if REFERENCE == "docs/cli.md" else sections((ROOT / "docs/cli.md").read_text())


def tables_of(parts):
    """The rows of each section by its anchor, by the first name of each."""
    return {anchor(heading): {row_name(line): line for _, line in lines if row_name(line)} for heading, _, lines in parts}


def row_name(line):
    """The first name of the flag or argument that a row of a table is about, or None."""
    first = re.match(r"\| `([^`]*)` \|", line)
    return first.group(1).split()[0].strip("[]").split(",")[0] if first else None


def code(lines):
    """Command lines and flags in code: spans of prose, and the lines of blocks, joined where they end in a backslash. Tables are left out."""
    found, block, joined = [], False, ""
    for number, line in lines:
        if line.startswith("```"):
            block = not block
        elif block:
            joined += line.removesuffix("\\")
            if not line.endswith("\\"):
                found.append((number, " ".join(joined.split())))
                joined = ""
        elif not line.startswith("|"):
            found += [(number, span) for span in re.findall(r"`([^`]+)`", line)]
    return found


def unknown_in(command_line, help_of, own):
    """What of a command line (`piper bench moe --tokens 4`), or of a bare flag of the command `own`, does not exist."""
    words = command_line.split()
    start = next((n for n, word in enumerate(words) if re.fullmatch(rf"(\S*/)?{PROGRAM}", word)), None)
    if start is None:
        return [word for word in words if re.fullmatch(r"--[a-z][a-z0-9-]*", word) and word not in own] if words[0].startswith("-") else []
    path, names, unknown = (), set(help_of[()].names), []
    for word in words[start + 1:]:
        below = help_of[path].commands
        if path == ("launch",) and word in help_of[()].commands:
            path, names = (word,), set(help_of[(word,)].names)
        elif below and re.fullmatch(r"[a-z]+", word):
            if word not in below:
                return [" ".join((*path, word))]
            path = (*path, word)
            names = set(help_of[path].names)
        elif re.match(r"--?[a-z]", word) and word not in names:
            unknown.append(word)
    return unknown


def problems_of(text, help_of):
    """Of the reference: everything in which it and --help differ."""
    problems, seen = [], set()
    parts = sections(text)
    shared = tables_of(parts) | tables_of(shared_elsewhere())
    for heading, first, lines in parts:
        say = lambda number, what: problems.append(f"{REFERENCE}:{number}: {what}")
        if heading.split()[0] != PROGRAM:
            own = set().union(*(each.names for each in help_of.values()))
            for number, line in lines:
                if row_name(line) and not any(each.rows.get(row_name(line)) == line for each in help_of.values()):
                    say(number, f"no command's --help says {line}")
        else:
            path = tuple(heading.split()[1:])
            if path not in help_of:
                say(first, f"there is no command `{heading}`")
                continue
            seen.add(path)
            rows, own, there = help_of[path].rows, help_of[path].names, set()
            for number, line in lines:
                name, also = row_name(line), SHARED.match(line)
                if name is not None:
                    there.add(name)
                    if name not in rows:
                        say(number, f"`{heading}` has no {name}")
                    elif line != rows[name]:
                        say(number, f"--help says {rows[name]}\n  and the row {line}")
                elif also:
                    table = shared.get(also.group(1), {})
                    for name in re.findall(r"`(-[^`]*)`", line):
                        there.add(name)
                        if name not in rows:
                            say(number, f"`{heading}` has no {name}")
                        elif table.get(name) != rows[name]:
                            say(number, f"#{also.group(1)} has no row {rows[name]}")
            for name in rows:
                if name not in there:
                    say(first, f"`{heading}` lacks {name}: {rows[name]}")
        for number, span in code(lines):
            for word in unknown_in(span, help_of, own):
                say(number, f"`{span}`: there is no {word}")
    problems += [f"{REFERENCE}: no section `{PROGRAM} {' '.join(path)}`" for path in help_of if path and path not in seen]
    return problems


def problems_of_page(page, help_of):
    """Of the command lines of another page, tables included."""
    lines = [(number, re.sub(r"^\|", " ", line)) for number, line in enumerate((ROOT / page).read_text().splitlines(), 1)]
    return [f"{page}:{number}: `{span}`: there is no {word}" for number, span in code(lines) if re.search(rf"\b{PROGRAM} ", span)
            for word in unknown_in(span, help_of, set())]


def rewritten(text, help_of):
    """The reference with the rows of its tables as --help has them."""
    parts = sections(text)
    shared = tables_of(shared_elsewhere())  # rows of the sections that no command has for itself: as most commands say it
    for heading, _, lines in parts:
        if heading.split()[0] != PROGRAM:
            for name in filter(None, (row_name(line) for _, line in lines)):
                rows = [each.rows[name] for each in help_of.values() if name in each.rows]
                if rows:
                    shared.setdefault(anchor(heading), {})[name] = max(rows, key=rows.count)
    out = text.splitlines()[:parts[0][1] - 1]
    for heading, first, lines in parts:
        out.append(text.splitlines()[first - 1])
        path = tuple(heading.split()[1:])
        of_command = heading.split()[0] == PROGRAM and path in help_of
        rows = help_of[path].rows if of_command else shared.get(anchor(heading), {})
        own, there, body = {row_name(line) for _, line in lines}, set(), []
        for _, line in lines:
            also, name = SHARED.match(line), row_name(line)
            if also:
                group = shared.get(also.group(1), {})
                named = [name for name in rows if name not in own and rows[name] == group.get(name)]
                there |= set(named)
                if named:
                    body.append(also.group(0) + ", ".join(f"`{name}`" for name in named) + ".")
            elif name is None:
                body.append(line)
            elif name in rows:
                there.add(name)
                body.append(rows[name])
        missing = [rows[name] for name in rows if of_command and name not in there]
        if missing:
            tables = [n for n, line in enumerate(body) if line.startswith("|")]
            at = tables[-1] + 1 if tables else len(body)
            body[at:at] = missing if tables else ["| flag | what it does |", "|---|---|", *missing, ""]
        out += body
    return "\n".join(out) + "\n"


# Flags whose values are an enumeration, by the commands that have them; what a command line needs besides.
CHOICES = {("estimate",): "all-to-all reduction reduction-start context-exchange moe-schedule schedule offload placement recompute precision drop",
           ("plan",): "all-to-all reduction reduction-start context-exchange moe-schedule schedule offload placement recompute precision drop",
           ("map",): "precision", ("bench", "moe"): "moe-schedule", ("bench", "pipeline"): "schedule", ("export",): "to"}
BESIDE = {"estimate": ["--model", "piper-10m", "--cluster", "frontier"], "plan": ["--model", "piper-10m", "--cluster", "frontier"],
          "map": ["--models", "piper-10m", "--cluster", "frontier", "--devices", "8"], "--drop": ["--capacity-factor", "1"]}
NOT_OFFERED = {"monta-o3"}  # known to every command, executed by none: `piper moe` alone prices it


def unnamed_choices(help_of):
    """Values that a flag takes, as its refusal of another says, and its --help does not name."""
    problems = []
    for path, flags in CHOICES.items():
        for flag in (f"--{flag}" for flag in flags.split() if path in help_of):
            line = [PIPER, *path, *BESIDE.get(path[0], []), *BESIDE.get(flag, []), flag, "nonsense"]
            said = subprocess.run(line, capture_output=True, text=True).stderr
            found = re.search(re.escape(flag) + r" is 'nonsense'; allowed: (.*)", said)
            row = help_of[path].rows.get(flag)
            if not found or row is None:
                problems.append(f"`{' '.join(line[1:])}` does not say what is allowed: {said.strip()}")
                continue
            named = set(re.split(r"[\s,;:()|]+", row))
            missing = [name for name in found.group(1).split(", ") if name not in named | NOT_OFFERED]
            if missing:
                problems.append(f"--help of `piper {' '.join(path)}` does not name {', '.join(missing)} of {flag}: {row}")
    return problems


# What is broken, what of the page is replaced by what, and what must be said.
BREAKS = [
    ("a command that is not there", "## piper sim\n", "## piper simulate\n", "there is no command `piper simulate`"),
    ("a command without a section", "### piper checkpoint verify\n", "### verify\n", "no section `piper checkpoint verify`"),
    ("a flag that is not there", "| `--straggler ", "| `--straggle ", "`piper sim` has no --straggle"),
    ("a flag without a row", "| `--min-devices` |", "| min-devices |", "`piper plan` lacks --min-devices"),
    ("a flag of a nested command without a row", "| `--linear-layers INT` |", "| linear layers |", "`piper bench pipeline` lacks --linear-layers"),
    ("another text", "| how many nodes to choose |", "| how many nodes |", "--help says | `--count INT` | how many nodes to choose |"),
    ("a shared flag without a name", "`--samples`, `--seed`.", "`--samples`.", "`piper plan` lacks --seed"),
    ("a shared flag without a row", "| `--etp INT` | ranks that share an expert's matrices (1)", "| etp | (1)", "#flags-of-a-strategy has no row | `--etp INT`"),
    ("a flag in prose", "`--speed-check` measures", "`--speed-checks` measures", "there is no --speed-checks"),
    ("a command line", "\npiper bench dedup\n", "\npiper bench dedupe\n", "there is no bench dedupe"),
]


def self_test(text, help_of):
    """The breaks that go unnoticed or that --write does not mend where it could."""
    unnoticed = []
    for what, old, new, said in BREAKS:
        if old not in text or not any(said in problem for problem in problems_of(text.replace(old, new), help_of)):
            unnoticed.append(f"{what}: nobody says {said}")
    for what, old, new, _ in BREAKS[2:6]:
        if problems_of(rewritten(text.replace(old, new), help_of), help_of):
            unnoticed.append(f"{what}: --write does not mend it")
    row = help_of[("plan",)].rows["--all-to-all"]
    help_of[("plan",)].rows["--all-to-all"] = row.replace("three-level", "")
    if not any("does not name three-level of --all-to-all" in problem for problem in unnamed_choices(help_of)):
        unnoticed.append("a value that --help does not name: nobody says so")
    return unnoticed


def main():
    help_of = all_help()
    path = ROOT / REFERENCE
    if "--write" in sys.argv[1:]:
        path.write_text(rewritten(path.read_text(), help_of))
    if "--self-test" in sys.argv[1:]:
        unnoticed = self_test(path.read_text(), help_of)
        print("\n".join(unnoticed + [f"cli_reference: {len(BREAKS)} breaks, {len(unnoticed)} unnoticed"]))
        return 1 if unnoticed else 0
    problems = problems_of(path.read_text(), help_of) + unnamed_choices(help_of)
    for page in ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{other.name}" for other in (ROOT / "docs").glob("*.md") if other != path)]:
        problems += problems_of_page(page, help_of)
    for problem in problems:
        print(problem)
    count = sum(len(each.rows) for each in help_of.values())
    print(f"cli_reference: {len(help_of) - 1} commands, {count} flags and arguments, {len(problems)} problems")
    if problems:
        print("`tests/cli_reference.py --write` rewrites the tables from --help")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
