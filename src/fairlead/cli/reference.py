"""The reference pages of the command line, the exit codes and the codes, as Markdown made from the program itself.

python -m fairlead.cli.reference [FOLDER]      writes these and the pages of every other room (docs/reference)

`make docs` calls it; a test holds every page fresh.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from fairlead.base.files import write_atomic
from fairlead.base.rooms import brought, load
from fairlead.cli.app import build
from fairlead.cli.help import help_text, overview
from fairlead.cli.verbs import verbs
from fairlead.errors import Exit
from fairlead.records.codes import explanations
from fairlead.records.verdict import Verdict, nagios_of

_MADE = "<!-- made by `make docs`; do not edit -->"

_CLI = """\
Answers go to stdout, everything else to stderr. With `--json` stdout is exactly one document, on failure too; its
`schema` names it, and `fairlead schema` prints the JSON Schema of what is inside. Colour only on a terminal; `NO_COLOR`
and `FORCE_COLOR` are obeyed. [Exit codes](exit-codes.md); [codes of findings and errors](codes.md)."""

_COMMON = "Every verb takes these too:"

_EXITS = """\
The exit status of every verb. It follows from the verdict; an error has its own. `--warn-as-fail` makes a warning 3."""

_NAGIOS = """\
With `--exit nagios`, for health-check programs. An error, whatever its kind, is 3; an interrupt stays 130."""

_CODES = """\
Every finding and every error carries a code. `fairlead explain CODE` prints the same in a terminal."""


def pages() -> dict[str, str]:
    """File name -> Markdown."""
    return {"cli.md": cli(), "exit-codes.md": exit_codes(), "codes.md": codes()}


def every_page() -> dict[str, str]:
    """The pages of all rooms, file name -> Markdown."""
    return {name: text for target in brought("pages") for name, text in load(target)().items()}


def command_paths() -> Iterator[list[str]]:
    """Every verb, and behind a verb with verbs of its own each of those, in the order of `--help`."""
    for verb in verbs():
        yield verb.name.split()


def cli() -> str:
    """The help page of every verb; the options all share stand once, at the top."""
    app = build()
    pages = {" ".join(path): help_text(app, path).strip().split("\n\n") for path in command_paths()}
    common = next(p for parts in pages.values() for p in parts if p.startswith("Output:"))
    parts = [f"# Command line\n\n{_MADE}\n\n{_CLI}", _block(overview()), _COMMON, _block(common)]
    for name, paragraphs in pages.items():
        own = [p for p in paragraphs if not p.startswith(("Output:", "Exit codes: 0 ok"))]
        parts += [f"{'##' if ' ' not in name else '###'} {name}", _block("\n\n".join(own))]
    return "\n\n".join(parts) + "\n"


def exit_codes() -> str:
    """The table of exit statuses."""
    rows = [f"| {int(e)} | {e.name.lower()} | {e.meaning} |" for e in Exit]
    nagios = [f"| {nagios_of(v)} | {nagios_of(v, warn_as_fail=True)} | {v} |" for v in Verdict]
    parts = [
        f"# Exit codes\n\n{_MADE}\n\n{_EXITS}",
        "\n".join(["| status | name | meaning |", "|---:|---|---|", *rows]),
        _NAGIOS,
        "\n".join(["| status | with `--warn-as-fail` | verdict |", "|---:|---:|---|", *nagios]),
    ]
    return "\n\n".join(parts) + "\n"


def codes() -> str:
    """Every code with cause, evidence and remedy, room by room."""
    parts = [f"# Codes\n\n{_MADE}\n\n{_CODES}"]
    for room, entries in groupby(explanations().values(), key=lambda e: e.code.partition("/")[0]):
        parts.append(f"## {room}")
        for e in entries:
            number = f" ({e.id})" if e.id else ""
            parts.append(
                f"### {e.code}{number}\n\n{e.title}\n\n"
                f"- cause: {e.cause}\n- evidence: {e.evidence}\n- remedy: {e.remedy}"
            )
    return "\n\n".join(parts) + "\n"


def _block(text: str) -> str:
    return f"```text\n{text.strip()}\n```"


def main(arguments: Sequence[str]) -> None:
    """Write the pages of all rooms."""
    folder = Path(arguments[0] if arguments else "docs/reference")
    for name, text in every_page().items():
        write_atomic(folder / name, text)


if __name__ == "__main__":
    main(sys.argv[1:])
