"""The numbers of the watch, from limits.toml, and what a node is told: one object, the same for every node."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, Literal

import msgspec

from fairlead.records.limit import Judges, Limit
from fairlead.spec.model import Spec
from fairlead.watch.table import Watch


class Number(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number."""

    value: float
    what: str
    source: str
    unit: str = ""
    judges: Judges | None = None
    code: str = ""


class Counter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An error counter of a port and how fast it may grow."""

    where: Literal["counters", "hw_counters"]
    limit: float
    """More than so much within the window is a finding."""
    window_s: float
    verdict: Literal["warn", "fail"]
    source: str


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    numbers: dict[str, Number]
    counters: dict[str, Counter]


@functools.cache
def _table() -> _Table:
    text = resources.files("fairlead.watch").joinpath("limits.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), _Table)


def numbers() -> Mapping[str, Number]:
    """Every number by name."""
    return _table().numbers


def counters() -> Mapping[str, Counter]:
    """Every error counter that is judged, by the name of its file."""
    return _table().counters


def settings_for(spec: Spec) -> dict[str, Any]:
    """What a node is told, as JSON can hold it."""
    ours = spec.table(Watch)
    said = ours.limits
    return {
        "period_s": ours.period_s,
        "glance_s": min(ours.glance_s, ours.period_s),
        "folder": ours.folder,
        "listen": ours.listen,
        "token_file": ours.token_file,
        "textfile": ours.textfile,
        "allowed": list(ours.allowed),
        "limits": {name: said.get(name, number.value) for name, number in numbers().items()},
        "counters": [
            {
                "counter": name,
                "where": counter.where,
                "limit": said.get(name, counter.limit),
                "window_s": counter.window_s,
                "verdict": counter.verdict,
            }
            for name, counter in counters().items()
        ],
    }


def limits(spec: Spec) -> Iterator[Limit]:
    """Those that judge, for `fairlead limits`."""
    said = spec.table(Watch).limits
    for name, number in numbers().items():
        if number.judges is not None:
            yield Limit(
                name=f"watch_{name}",
                what=number.what,
                judges=number.judges,
                value=said.get(name, number.value),
                unit=number.unit,
                source="the cluster file" if name in said else number.source,
                key=f"watch.limits.{name}",
                code=number.code,
            )
    for name, counter in counters().items():
        yield Limit(
            name=f"watch_{name}",
            what=f"growth of a port's {counter.where}/{name} within {counter.window_s:g} s",
            judges="fail above" if counter.verdict == "fail" else "warn above",
            value=said.get(name, counter.limit),
            unit=f"in {counter.window_s:g} s",
            source="the cluster file" if name in said else counter.source,
            key=f"watch.limits.{name}",
            code="watch/counter-rate",
        )
