"""Any scenario, however wrong: it is refused by fairlead's own errors, or estimated and its faults laid out."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from fairlead.errors import FairleadError
from fairlead.fabric.sim import faults, model
from fairlead.fabric.sim.nicset import NicSet
from fairlead.fabric.sim.setup import prepare
from support.depth import cases
from support.sim_runs import scenario

NUMBERS = ["0", *["1", "2", "3"] * 4, "7", "16", "255", "65536", "-1", "-2", "1099511627776"]  # mostly possible
FLOATS = ["0", *["0.5", "1", "100"] * 5, "1e-9", "3.3", "1e5", "1e9", "1e12", "-1", "nan", "inf"]
SETS = [*['""', '"0"', '"1-2"'] * 3, '"0-3"', '"1-3/2"', '"5-2"', '"x"', '"99999"', '"0,0,1"']
LARGE = {"size_bytes", "chunk_bytes", "messages", "steps", "qps"}  # they cost time, not thought


def values(key: str, kind: Any) -> st.SearchStrategy[str]:
    """Values of one key as TOML writes them, most of them possible."""
    if kind is NicSet:
        return st.sampled_from(SETS)
    info = msgspec.inspect.type_info(kind)
    for one in info.types if isinstance(info, msgspec.inspect.UnionType) else (info,):
        if isinstance(one, msgspec.inspect.LiteralType):
            return st.sampled_from([f'"{v}"' for v in one.values if v != "file"])
        if isinstance(one, msgspec.inspect.IntType):
            return st.sampled_from(NUMBERS[:6] if key in LARGE else NUMBERS)
        if isinstance(one, msgspec.inspect.FloatType):
            return st.sampled_from(FLOATS)
        if isinstance(one, msgspec.inspect.BoolType):
            return st.sampled_from(["true", "false"])
    return st.sampled_from(SETS)


def table(kind: type[msgspec.Struct], *always: str) -> st.SearchStrategy[str]:
    """A few keys of a table, and those without which it says nothing."""
    keys = {f.encode_name: values(f.encode_name, f.type) for f in msgspec.structs.fields(kind) if f.name != "file"}
    few = st.sets(st.sampled_from(sorted(keys)), max_size=3)
    chosen = few.flatmap(lambda some: st.fixed_dictionaries({k: keys[k] for k in sorted(some | set(always))}))
    return chosen.map(lambda said: "".join(f"{key} = {value}\n" for key, value in said.items()))


@st.composite
def scenarios(draw: st.DrawFn) -> str:
    sizes = {k: draw(st.sampled_from(["1", "2", "3", "8"])) for k in ("planes", "t0", "t1", "hosts_per_t0")}
    text = "[topology]\n" + "".join(f"{k} = {v}\n" for k, v in sizes.items())
    if draw(st.booleans()):
        text = "[topology]\n" + draw(table(model.Topology, "t0", "t1"))
    for name, kind in (
        ("links", model.Links),
        ("queues", model.Queues),
        ("transport", model.Transport),
        ("run", model.Run),
    ):
        if draw(st.integers(0, 3)) == 0:
            text += f"[{name}]\n" + draw(table(kind))
    for _ in range(draw(st.integers(1, 2))):
        text += "[[traffic]]\n" + draw(table(model.Traffic, "kind"))
    for _ in range(draw(st.integers(0, 2))):
        text += "[[fault]]\n" + draw(table(model.Fault, "kind", "at_us"))
    return text


@settings(max_examples=cases(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
def test_a_scenario_is_refused_or_can_be_estimated(text):
    try:
        read = scenario(text)
        setup = prepare(read)
    except FairleadError as refused:
        event(refused.code)
        return
    event("played")
    assert sum(setup.estimate.values()) > 0
    assert all(at >= 0 for at, _ in faults.timeline(read, setup.shape))
    assert all(
        faults.links(setup.shape, part) for one in read.fault for part in faults.each(one) if one.kind != "paths"
    )
