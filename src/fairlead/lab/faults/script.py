"""A timeline of faults: a text file, checked whole, then played.

Knows: the file's form and the clock. Must not know: what a fault does.

    # seconds   what
    0           silent-drop p2/n3
    2.5         loss p*/n1 percent=5 side=up
    5           heal silent-drop p2/n3
    10          heal all

Times count from the start of the script and may not run backwards. Faults in force at the end stay in force; when the
script is interrupted, or cannot go on, those it injected are healed.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fairlead.base.suggest import did_you_mean
from fairlead.base.trust import read_file
from fairlead.errors import FairleadError, LabError, Problem, SpecError, UsageError
from fairlead.lab import store
from fairlead.lab.faults import apply, catalog
from fairlead.lab.faults.kinds import View
from fairlead.lab.shape import LabShape
from fairlead.records.labstate import Fault

MAX_BYTES = 1 << 20
_SECONDS = re.compile(r"-?\d{1,7}(\.\d{1,9})?s?\Z")


@dataclass(frozen=True, slots=True)
class Step:
    """One line: at a time, inject (kind, target, settings) or heal (`which`)."""

    at_s: float
    line: int
    text: str
    kind: str = ""
    target: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    which: str = ""


def read(path: Path, shape: LabShape, in_force: Sequence[Fault] = ()) -> list[Step]:
    """The steps of a file. Raises SpecError with every line that cannot be played on this shape.

    `in_force`: faults that are there already and may be healed.
    """
    try:
        text = read_file(path, MAX_BYTES).decode("utf-8")
    except OSError as error:
        hint = "a script has lines such as: 2.5 silent-drop p2/n3"
        raise UsageError("lab/bad-script", f"cannot read {path}: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise UsageError("lab/bad-script", f"{path} is not UTF-8 text", hint="save it as UTF-8 text") from error
    return parse(text, shape, str(path), in_force)


def parse(text: str, shape: LabShape, file: str = "script", in_force: Sequence[Fault] = ()) -> list[Step]:
    """The steps of a text; see `read`."""
    steps: list[Step] = []
    problems: list[Problem] = []
    latest = 0.0
    view = View(shape, lambda _: {})
    known = {"all"} | {name for f in in_force for name in (str(f.id), *_names(f.kind, f.target))}
    for number, source in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(source, comments=True)
            if not words:
                continue
            step = _step(words, number, source.strip())
            before, latest = latest, max(latest, step.at_s)
            _check(step, view, before, known)
            known |= set(_names(step.kind, step.target)) if step.kind else set()
            steps.append(step)
        except (UsageError, LabError, ValueError) as error:
            problems.append(
                Problem("lab/bad-script", str(error), file, line=number, column=1, length=len(source), source=source)
            )
    if problems:
        raise SpecError(problems, hint="fairlead lab fault --kinds")
    return steps


def _names(kind: str, target: str) -> tuple[str, str, str]:
    """What a fault can be healed by, besides its number."""
    return kind, target, f"{kind} {target}"


def _check(step: Step, view: View, before_s: float, known: Collection[str]) -> None:
    if step.at_s < before_s:
        raise UsageError("lab/bad-script", f"{step.at_s:g} s is before {before_s:g} s, the latest line above")
    if step.kind:
        kind = catalog.kind_of(step.kind)
        catalog.targets_of(kind, step.target, view)
        catalog.settings_of(kind, dict(step.settings))
    elif step.which not in known:
        raise UsageError("lab/bad-script", f"`{step.which}` is not in force, and no line above injects it")


def _step(words: list[str], number: int, text: str) -> Step:
    if not _SECONDS.match(words[0]):
        raise UsageError("lab/bad-script", f"`{words[0]}` is not a time in seconds")
    at_s = float(words[0].removesuffix("s"))
    match words[1:]:
        case ["heal", *which] if which:
            return Step(at_s, number, text, which=" ".join(which))
        case [kind, target, *rest] if kind != "heal":
            return Step(at_s, number, text, kind, target, settings=tuple(pairs(rest).items()))
        case _:
            raise UsageError(
                "lab/bad-script", "a line is `SECONDS KIND TARGET [NAME=VALUE ...]` or `SECONDS heal WHICH`"
            )


def pairs(words: list[str]) -> dict[str, str]:
    """`NAME=VALUE` words as a mapping. Raises UsageError `lab/bad-setting`."""
    out = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(
                "lab/bad-setting", f"`{word}` is not NAME=VALUE; {did_you_mean(word, ['percent=1', 'side=up'])}"
            )
        out[name] = value
    return out


def play(
    name: str, steps: list[Step], said: Callable[[str], None], *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Play steps on a running lab, saying each as it takes effect."""
    start = time.monotonic()
    ours: list[int] = []
    try:
        for step in steps:
            sleep(max(0.0, start + step.at_s - time.monotonic()))
            if step.which:
                apply.heal(name, step.which)
            else:
                ours.append(apply.inject(name, step.kind, step.target, dict(step.settings)).id)
            said(f"{time.monotonic() - start:8.3f} s  {' '.join(step.text.split()[1:])}")
    except (KeyboardInterrupt, FairleadError):
        with contextlib.suppress(FairleadError):  # what stopped the script is what is told
            in_force = {f.id for f in store.running(name).faults}
            for fault in (f for f in ours if f in in_force):
                apply.heal(name, str(fault))
        raise


def play_file(name: str, path: Path, said: Callable[[str], None]) -> None:
    """Check a file against a running lab, then play it."""
    state = store.running(name)
    play(name, read(path, msgspec.convert(state.shape, LabShape), state.faults), said)
