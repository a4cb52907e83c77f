"""Help as plain columns: names to the left, what they mean to the right. Only this file knows cyclopts' help parts."""

from __future__ import annotations

import io
import re
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from fairlead.cli.verbs import verbs

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

_WIDEST_NAME = 26
WIDTH = 100
_PROLOGUE = (
    "fairlead takes an AI cluster with an RDMA-capable network from booted machines to a running, debuggable job."
)
EPILOGUE = "Exit codes: 0 ok, 1 bug, 2 usage, 3 verdict fail, 4 could not judge, 5 temporary, 130 interrupted."
_FLAGS = {
    "--help, -h": "Show this, or what a verb takes.",
    "--version": "Show the version.",
    "--install-completion": "Let the shell complete verbs and flags.",
}


def overview(width: int = WIDTH) -> str:
    """The help page of the whole program, made from the table of verbs alone: it is shown before anything is loaded."""
    rows = [(v.name, v.help) for v in verbs() if " " not in v.name] + list(_FLAGS.items())
    indent = max(len(name) for name, _ in rows) + 4
    lines = [_row(name, text, indent, width) for name, text in rows]
    parts = ["usage: fairlead VERB", textwrap.fill(_PROLOGUE, width), "\n".join(["Verbs:", *lines])]
    return "\n\n".join([*parts, textwrap.fill(EPILOGUE, width)]) + "\n"


def help_text(app: App, words: list[str], *, width: int = WIDTH) -> str:
    """The help page of a verb as text."""
    from rich.console import Console

    if len(words) == 1 and words[0] in app:
        inner = app[words[0]]
        for name in inner:
            inner[name].help  # noqa: B018 - loads the verb: its docstring stands in the list
    out = io.StringIO()
    app.help_print(words, console=Console(file=out, width=width))
    return re.sub(r"\n{3,}", "\n\n", out.getvalue()).strip() + "\n"


def width_here() -> int:
    """Characters a line may have: those of the terminal, and 100 elsewhere and at most."""
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns) if sys.stdout.isatty() else WIDTH


class PlainHelp:
    """A help formatter for cyclopts that writes text and leaves wrapping to nobody else."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """One group of parameters or verbs."""
        rows = [(_names(e), _meaning(e)) for e in panel.entries]
        if rows:
            indent = min(_WIDEST_NAME, max(len(names) for names, _ in rows)) + 4
            lines = [f"{_plain(panel.title)}:", *(_row(names, text, indent, console.width) for names, text in rows)]
            console.file.write("\n".join(lines) + "\n\n")

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        """`usage: fairlead show [OPTIONS] [ARGS]`."""
        if usage:
            console.file.write(f"usage: {_plain(usage).removeprefix('Usage:').strip()}\n\n")

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        """What the verb does, paragraph by paragraph."""
        if text := _plain(description):
            paragraphs = [textwrap.fill(" ".join(p.split()), console.width) for p in re.split(r"\n\s*\n", text)]
            console.file.write("\n\n".join(paragraphs) + "\n\n")


def _names(entry: HelpEntry) -> str:
    if entry.positional_label:
        return entry.positional_label
    return ", ".join(entry.display_labels_with_metavar)


def _meaning(entry: HelpEntry) -> str:
    parts = [" ".join(_plain(entry.description).split())]
    if entry.choices:
        parts.append(f"One of: {', '.join(entry.choices)}.")
    if entry.default not in {None, "", '""', "False", "None"}:
        parts.append(f"Default: {entry.default}.")
    if entry.required:
        parts.append("Required.")
    return " ".join(p for p in parts if p)


def _row(names: str, text: str, indent: int, width: int) -> str:
    lines = textwrap.wrap(text, max(30, width - indent)) or [""]
    head = f"  {names}"
    if len(head) + 2 > indent:
        return "\n".join([head, *(" " * indent + line for line in lines)])
    return "\n".join([head.ljust(indent) + lines[0], *(" " * indent + line for line in lines[1:])]).rstrip()


def _plain(part: Any) -> str:
    """The words of whatever cyclopts made of a docstring."""
    if part is None or isinstance(part, str):
        return part or ""
    if hasattr(part, "plain"):
        return str(part.plain)
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=100_000, color_system=None, markup=False, emoji=False).print(part, highlight=False)
    return out.getvalue().strip()
