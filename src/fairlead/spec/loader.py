"""Finds, reads and completes the cluster file: the one door the rest of fairlead uses."""

from __future__ import annotations

import datetime as dt
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base.suggest import did_you_mean
from fairlead.errors import Problem, UsageError
from fairlead.spec.decode import Decoded, Reading, decode_text
from fairlead.spec.locate import KeyPath
from fairlead.spec.model import Spec
from fairlead.spec.resolve import Origin, resolve
from fairlead.spec.rules import rules
from fairlead.spec.tables import spec_type
from fairlead.spec.text import read_text

DEFAULT_FILE = "cluster.toml"
_NEXT = "fairlead init"
_PRESETS = Path(__file__).with_name("presets")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A cluster file that holds, and what is known about it."""

    spec: Spec
    origins: Mapping[KeyPath, Origin]
    """Where every final value came from."""
    warnings: tuple[Problem, ...]
    """What stops nobody: waivers that have run out, tables that nobody reads."""
    file: str
    """The path, or `preset:NAME`."""
    text: str
    """The file as it was read; a run folder keeps it."""


def load(path: Path | str | None = None) -> Spec:
    """The cluster file, complete. Raises SpecError with every problem, each with its line."""
    return read(path).spec


def read(
    path: Path | str | None = None,
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    today: dt.date | None = None,
    or_lab: bool = False,
) -> Loaded:
    """The cluster file with its origins and warnings. Raises SpecError.

    Looks at `path`, then $FAIRLEAD_SPEC, then ./cluster.toml. With `or_lab`, the lab's preset stands in where none of
    them is given and ./cluster.toml is not there. The file names programs that are run: one that nobody named counts
    only if nobody else could have written it, and one that everybody may write never does. `flags` maps dotted keys
    ("access.fanout") to values; None is not given.
    """
    environ = os.environ if environ is None else environ
    named = path or environ.get("FAIRLEAD_SPEC") or None
    if named is None and or_lab and not Path(DEFAULT_FILE).exists():
        return preset("lab", flags=flags, environ=environ, today=today)
    file = Path(named or DEFAULT_FILE)
    text = read_text(file, what="cluster file", hint=_NEXT, named=named is not None)
    return _complete(text, file=str(file), flags=flags or {}, environ=environ, today=today)


def preset(
    name: str,
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    today: dt.date | None = None,
) -> Loaded:
    """A preset, as if it stood in a file. Raises UsageError for an unknown name."""
    text = preset_text(name)
    environ = os.environ if environ is None else environ
    return _complete(text, file=f"preset:{name}", flags=flags or {}, environ=environ, today=today)


def preset_names() -> list[str]:
    """What `fairlead init --preset` takes."""
    return sorted(f.stem for f in _PRESETS.glob("*.toml"))


def preset_text(name: str) -> str:
    """A preset as TOML; its first line is a comment that says what it is for."""
    if name not in preset_names():
        raise UsageError(
            "spec/unknown-preset",
            f"no preset `{name}`; {did_you_mean(name, preset_names())}",
            hint="fairlead init --list",
        )
    return _PRESETS.joinpath(f"{name}.toml").read_text("utf-8")


@functools.cache
def _lab() -> Decoded[Spec]:
    return decode_text(preset_text("lab"), spec_type(), file="preset:lab")


def _complete(
    text: str,
    *,
    file: str,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    today: dt.date | None,
) -> Loaded:
    reading = Reading(text, spec_type(), file=file, hint=_NEXT)
    reading.value, origins = resolve(reading, _lab(), flags=flags, environ=environ)
    reading.run(rules(today or dt.datetime.now(dt.UTC).date()))
    done = reading.done()
    return Loaded(spec=done.value, origins=origins, warnings=done.warnings, file=file, text=text)
