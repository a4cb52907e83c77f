from __future__ import annotations

from itertools import pairwise

import msgspec
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fairlead.records.fabricview import FabricView, Host, Port, Switch, Trunk
from fairlead.records.verdict import Verdict
from fairlead.report.fabric_picture import fabric_figure
from fairlead.report.fabric_words import callouts, columns_of, fabric_text, place_of
from fairlead.report.scale import Axis, scale, spread
from support.depth import cases
from support.pictures import labels, outside, overlaps

finite = st.floats(-1e15, 1e15, allow_nan=False)


@given(st.lists(finite, min_size=1), st.integers(2, 10))
def test_every_value_lies_on_its_scale_between_its_ticks(values, num_ticks):
    found = scale(Axis("x"), values, num_ticks=num_ticks)
    rounding = 1e-8 * (found.hi - found.lo)
    assert found.lo - rounding <= min(values)
    assert found.hi + rounding >= max(values)
    assert 2 <= len(found.ticks) <= num_ticks + 3
    assert len({t.label for t in found.ticks}) == len(found.ticks)


@given(st.lists(st.floats(0, 300), min_size=1, max_size=15))
def test_spread_labels_keep_order_distance_and_limits(wanted):
    placed = spread(wanted, 14, 0, 300)
    by_height = sorted(placed)
    assert all(b - a >= 14 - 1e-6 for a, b in pairwise(by_height))
    assert by_height[0] >= -1e-6
    assert by_height[-1] <= 300 + 1e-6
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    assert all(placed[a] < placed[b] for a, b in pairwise(order))


@given(st.lists(st.floats(0, 300), min_size=1, max_size=15, unique=True))
def test_labels_that_have_room_are_not_moved(wanted):
    apart = sorted(wanted)
    if all(b - a >= 14 for a, b in pairwise(apart)):
        assert spread(wanted, 14, 0, 300) == wanted


states = st.sampled_from(["up", "down", "faulty", "unknown"])
verdicts = st.sampled_from([None, *Verdict])
notes = st.sampled_from(["", "silent drop", "link down", "loses 5 % of packets"])


@st.composite
def views(draw):
    planes, t0, t1 = draw(st.integers(1, 8)), draw(st.integers(1, 18)), draw(st.integers(1, 18))
    per_t0 = draw(st.integers(1, 4))
    prefix = draw(st.sampled_from(["n", "h200-", "a-rather-long-node-name-", ""]))
    hosts = tuple(
        Host(name=f"{prefix}{i:0{draw(st.integers(1, 3))}}", t0=i // per_t0, state=draw(states), note=draw(notes))
        if i < 3
        else Host(name=f"{prefix}{i}", t0=i // per_t0)
        for i in range(t0 * per_t0)
    )
    names = [h.name for h in hosts]
    plane = st.integers(0, planes - 1)
    said = {"state": states, "note": notes, "verdict": verdicts}
    ports = st.builds(Port, host=st.sampled_from(names), plane=plane, rate_bps=st.none() | st.floats(0, 1e12), **said)
    trunks = st.builds(Trunk, plane=plane, t0=st.integers(0, t0 - 1), t1=st.integers(0, t1 - 1), **said)
    switches = st.builds(Switch, plane=plane, tier=st.just(1), index=st.integers(0, t1 - 1), **said)

    def some(kind, most):
        return tuple(draw(st.lists(kind, max_size=most, unique_by=place_of)))

    return FabricView(
        title="lab",
        num_planes=planes,
        num_t0=t0,
        num_t1=t1,
        hosts=hosts,
        ports=some(ports, 6),
        trunks=some(trunks, 4),
        switches=some(switches, 3),
        rate_bps=draw(st.none() | st.just(250e6)),
    )


@settings(max_examples=cases(60), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(views(), st.sampled_from([344, 880]))
def test_any_fabric_is_drawn_with_all_its_remarks_and_no_label_over_another(view, width):
    svg = fabric_figure(view).svg(width)
    shown = [label.text for label in labels(svg)]
    said = callouts(view)
    for callout in said:
        assert str(callout.number) in shown
        assert any(callout.text.startswith(text) or text in callout.text for text in shown)
    assert not overlaps(svg)
    assert not outside(svg)
    text = fabric_text(view)
    assert all(f"({c.number})  {c.text}" in text for c in said)


@settings(max_examples=cases(100))
@given(views(), st.integers(1, 20))
def test_columns_hold_every_host_once_and_are_few_enough(view, most):
    columns = columns_of(view, most)
    assert sorted(h for c in columns for h in c.hosts) == sorted(h.name for h in view.hosts)
    assert len(columns) <= max(most, 1)


@settings(max_examples=cases(50))
@given(views())
def test_a_part_with_a_verdict_against_it_is_always_called_out(view):
    loud = {
        place_of(p)
        for p in (*view.hosts, *view.ports, *view.trunks, *view.switches)
        if p.verdict in (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN) or p.note
    }
    said = {place_of(p) for c in callouts(view) for p in c.parts}
    assert loud <= said


@given(views())
@settings(max_examples=cases(20))
def test_a_view_survives_json(view):
    assert msgspec.json.decode(msgspec.json.encode(view), type=FabricView) == view
