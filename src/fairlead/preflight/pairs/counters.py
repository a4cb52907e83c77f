"""Port counters before the pairs and behind the ranks: what a difference says of a port. Pure.

A link that flaps may be up whenever somebody sends over it, and errors that are corrected or sent again slow nobody
down for a second; the port has counted them. A reading is rail -> counter -> value; which counters, and what they mean,
is `counters.toml`. Counters that stand at the end of their register, or went backwards, say nothing.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Literal, TypeAlias

import msgspec

from fairlead.records.addressbook import Place
from fairlead.records.facts import Facts, NodeFacts, Unread

Reading: TypeAlias = dict[str, dict[str, int]]
BIT_ERROR_RATIO = 1e-12
"""Of a healthy link: InfiniBand Architecture Specification, volume 2; IEEE 802.3."""
CHANCE = 1e-6
"""A healthy port is accused with at most this probability."""
MANY = 500.0
CHANCE_SIGMA = 4.76
"""Deviations that a normal distribution exceeds with CHANCE."""


class Counter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the table."""

    name: str
    where: Literal["ib", "net"]
    judged: Literal["change", "bits", "host"]
    says: str
    source: str
    full: int | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A counter that differs."""

    rail: str
    counter: str
    before: int
    after: int


@functools.cache
def table() -> Mapping[str, Counter]:
    """Every counter by name."""
    text = resources.files("fairlead.preflight.pairs").joinpath("counters.toml").read_text("utf-8")
    rows = msgspec.convert(tomllib.loads(text)["counter"], tuple[Counter, ...])
    return {row.name: row for row in rows}


def asked() -> list[list[str]]:
    """What an agent is told to read: counter, where."""
    return [[row.name, row.where] for row in table().values()]


def ports(place: Place) -> list[list[str | int]]:
    """Whose counters: rail, interface, RDMA device, its port."""
    return [[port.rail, port.interface, port.device, port.port] for port in place.ports]


def probed(record: NodeFacts, place: Place) -> Reading:
    """The same counters as the probe read them, as far as it did: an earlier beginning of the time watched."""
    facts, out = Facts(record), Reading()
    for port in place.ports:
        own = out[port.rail] = {}
        for row in table().values():
            if row.where == "ib" and port.device:
                where: tuple[str, ...] = ("ib.devices", port.device, "ports", str(port.port), "counters", row.name)
            elif row.name == "carrier_changes" and port.interface:
                where = ("net.links", port.interface, row.name)
            else:
                continue
            try:
                value = facts.get(*where)
            except Unread:
                continue
            if isinstance(value, int):
                own[row.name] = value
    return out


def merged(first: Mapping[str, Mapping[str, int]], later: Mapping[str, Mapping[str, int]]) -> Reading:
    """Two readings as one beginning: what the first lacks is taken from the later."""
    return {rail: {**later.get(rail, {}), **first.get(rail, {})} for rail in {**later, **first}}


def changes(before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]) -> Iterator[Change]:
    """Every counter that went up."""
    for rail, own in after.items():
        for name, value in own.items():
            was = before.get(rail, {}).get(name)
            if was is not None and value > was:
                yield Change(rail=rail, counter=name, before=was, after=value)


def allowed(change: Change, rate_bps: float, seconds: float) -> int | None:
    """How many are nothing; None where the counter judges no port, or nobody can say how many bits there were."""
    row = table().get(change.counter)
    if row is not None and row.judged == "change":
        return 0
    if row is None or row.judged == "host" or not rate_bps or seconds <= 0:
        return None
    return _most(BIT_ERROR_RATIO * rate_bps * seconds)


def is_flap(change: Change) -> bool:
    """Whether a counter says that the link itself was away."""
    row = table().get(change.counter)
    return row is not None and row.judged == "change"


def _most(mean: float) -> int:
    """The largest number that a Poisson distribution of this mean exceeds with more than CHANCE."""
    if mean > MANY:  # nearly normal, and a term of the sum below would be no number any more
        return math.ceil(mean + CHANCE_SIGMA * math.sqrt(mean))
    term = math.exp(-mean)
    number = 0
    beyond = 1.0 - term
    while beyond > CHANCE:
        number += 1
        term *= mean / number
        beyond -= term
    return number
