"""Whatever faults come and go, in whatever order: carrying out the differences always leads to what is asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.lab import hosttree
from fairlead.lab.faults import catalog
from fairlead.lab.faults.effects import Effects, changes, merged
from fairlead.lab.faults.kinds import View
from fairlead.lab.shape import LabShape

SHAPE = LabShape(planes=2)
PORTS = [{"device": f"eth{p + 1}", "mac": f"02:0{p}:00:00:00:00", "address": "::", "gbps": 100} for p in range(2)]
TREES = {n: hosttree.generated(hosttree.shows(n, i, gpus=1, ports=PORTS)) for i, n in enumerate(SHAPE.nodes)}
VIEW = View(SHAPE, TREES.__getitem__)
NEEDED = {"mbps": "10", "version": "1.2", "path": "/etc/x"}


@st.composite
def faults(draw):
    """Effects of one random fault, with a number of its own."""
    kind = catalog.KINDS[draw(st.sampled_from(sorted(catalog.KINDS)))]
    pattern = {"link": "p*/n*", "switch": "*/*", "host": "*", "pair": "*"}[kind.on]
    target = draw(st.sampled_from(catalog.targets_of(kind, pattern, VIEW)))
    given_ = {n: NEEDED[n] for n, s in kind.settings.items() if s.default is None}
    return kind.effects(VIEW, draw(st.integers(1, 10**6)), target, catalog.settings_of(kind, given_))


def carry_out(state: dict, found) -> dict:
    """A lab that does what it is told: (field, key) -> value."""
    after = dict(state)
    for change in found:
        if change.is_on:
            after[change.what, change.key] = change.value
        else:
            assert (change.what, change.key) in after, "something is undone that was never done"
            del after[change.what, change.key]
    return after


def as_done(effects: Effects) -> dict:
    done = carry_out({}, changes(Effects(), effects))
    # who asked for a port to be down does not matter
    return {k: (None if k[0] in ("down", "dead", "hung") else v) for k, v in done.items()}


@given(st.lists(faults(), max_size=5), st.lists(faults(), max_size=5))
def test_differences_lead_from_any_set_to_any_other(before, after):
    start = carry_out({}, changes(Effects(), merged(before)))
    end = carry_out(start, changes(merged(before), merged(after)))
    assert {k: (None if k[0] in ("down", "dead", "hung") else v) for k, v in end.items()} == as_done(merged(after))


@given(st.lists(faults(), max_size=6), st.randoms())
def test_healing_all_in_any_order_leaves_nothing(injected, random):
    state, standing = {}, []
    for fault in injected:
        state = carry_out(state, changes(merged(standing), merged([*standing, fault])))
        standing.append(fault)
    while standing:
        rest = list(standing)
        rest.pop(random.randrange(len(rest)))
        state = carry_out(state, changes(merged(standing), merged(rest)))
        standing = rest
    assert state == {}
