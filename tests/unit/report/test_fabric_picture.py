from __future__ import annotations

import msgspec
import pytest

from fairlead.records.fabricview import Host, Pair, Port, Switch, Trunk
from fairlead.records.verdict import Verdict
from fairlead.report.fabric_picture import fabric_figure
from fairlead.report.fabric_words import callouts, columns_of, fabric_text, short_names
from support.pictures import labels, parse
from support.views import large, medium, small, view

SVG = "{http://www.w3.org/2000/svg}"


def shown(figure, width=880):
    return [label.text for label in labels(figure.svg(width))]


def titles(figure):
    return [t.text for t in parse(figure.svg()).iter(f"{SVG}title")]


def test_a_healthy_fabric_names_all_its_parts_and_calls_nothing_out():
    texts = shown(fabric_figure(view(4, 4, 2, 2)))
    assert texts[0] == "4 hosts n[0-3], 4 planes of 2 T0 and 2 T1 switches; ports 250 Mb/s, trunks 250 Mb/s"
    for part in ("plane 0", "plane 3", "T0 1", "T1 0", "n0", "n3"):
        assert part in texts
    assert texts.count("T1 1") == 4
    assert callouts(view(4, 4, 2, 2)) == []
    assert "Everything is up." in fabric_figure(view(4, 4, 2, 2)).desc


def test_every_part_is_there_once():
    names = titles(fabric_figure(view(4, 3, 2, 2)))
    for plane in range(3):
        for host in range(4):
            assert names.count(f"n{host}, plane {plane}: up") == 2, "fill and frame of one gauge"
        for switch in ("T0 0", "T0 1", "T1 0", "T1 1"):
            assert names.count(f"{switch}, plane {plane}") == 1


def test_the_worst_comes_first_and_says_verdict_place_and_numbers():
    assert [c.text for c in callouts(small())] == [
        "FAIL n2 port, plane 1: 1/20 of its siblings, 12 Mb/s of 250 Mb/s",
        "WARN T0 0 to T1 1, plane 3: loses 5 % of packets",
    ]
    svg = fabric_figure(small()).svg()
    assert 'fill="var(--fail)"' in svg
    assert 'fill="var(--warn)"' in svg


def test_what_a_dead_host_or_switch_takes_along_is_drawn_but_not_called_out():
    said = [c.text for c in callouts(medium())]
    assert said[0] == "FAIL host h200-009: does not answer"
    assert sum("h200-009" in text for text in said) == 1
    dead = [t for t in titles(fabric_figure(medium())) if t.startswith("h200-009, plane") and "down" in t]
    assert len(dead) == 8


def test_the_ports_of_a_dead_host_are_drawn_down_even_if_nobody_lists_them():
    hosts = (Host(name="n0", t0=0), Host(name="n1", t0=0, state="down", note="dead"))
    made = msgspec.structs.replace(view(2, 2, 1, 1), hosts=hosts)
    assert "n1, plane 0: down" in titles(fabric_figure(made))
    assert "n0, plane 0: up" in titles(fabric_figure(made))


def test_equal_remarks_at_several_places_share_a_number():
    ports = [Port(host=f"n{h}", plane=p, state="down", note="carrier down") for h in (0, 1) for p in (0, 1, 3)]
    (said,) = callouts(view(4, 4, 2, 2, ports=tuple(ports)))
    assert said.text == "n[0-1] port, planes 0-1,3: carrier down"
    figure = fabric_figure(view(4, 4, 2, 2, ports=tuple(ports)))
    assert shown(figure).count("1") == 6 + 1, "at each place and in the list"


def test_an_active_fault_nobody_judged_is_shown_without_a_verdict():
    (said,) = callouts(view(4, 2, 2, 2, ports=(Port(host="n1", plane=0, note="silent drop", state="faulty"),)))
    assert (said.role, said.text) == ("warn", "n1 port, plane 0: silent drop")


def test_pairs_are_bracketed_below_their_hosts():
    pairs = (Pair(a="n0", b="n3", plane=2, note="no packet passes", verdict=Verdict.FAIL),)
    figure = fabric_figure(view(4, 4, 2, 2, pairs=pairs))
    assert "FAIL n0 and n3, plane 2: no packet passes" in shown(figure)
    assert len(list(parse(figure.svg()).iter(f"{SVG}path"))) == 1


def test_hosts_beyond_sixteen_are_folded_by_t0_and_a_bad_port_is_still_counted_and_named():
    assert [c.name for c in columns_of(large(), 16)][:2] == ["h200-[000-015]", "h200-[016-031]"]
    texts = shown(fabric_figure(large()))
    assert "000-015" in texts
    assert texts.count("15/16") == 2
    assert "FAIL h200-044 port, plane 3: carrier down" in texts


def test_very_many_switches_are_folded_too():
    made = view(4096, 2, 64, 64, name="h{:04}")
    columns = columns_of(made, 16)
    assert len(columns) == 16
    assert columns[0].t0s == (0, 1, 2, 3)
    figure = fabric_figure(made)
    texts = shown(figure)
    assert "T1 0-63" in texts
    assert texts.count("60-63") == 2, "the last T0s, once a plane"
    assert len(figure.svg()) < 100_000


def test_a_switch_or_trunk_that_is_folded_away_is_named_in_the_list():
    made = view(
        4096,
        2,
        64,
        64,
        name="h{:04}",
        switches=(Switch(plane=1, tier=1, index=40, state="down", note="dark"),),
        trunks=(Trunk(plane=0, t0=5, t1=9, note="slow", state="faulty"),),
    )
    texts = shown(fabric_figure(made))
    assert "T1 40, plane 1: dark" in texts
    assert "T0 5 to T1 9, plane 0: slow" in texts


def test_short_names_never_cut_a_number():
    columns = columns_of(view(12, 1, 1, 1, name="rack7-node{}"), 16)
    common, names = short_names(columns)
    assert common == "rack7-node…"
    assert names[:2] + names[-1:] == ["0", "1", "11"]
    assert short_names(columns_of(view(2, 1, 1, 1, name="n1{}"), 16)) == ("n…", ["10", "11"])


def test_the_terminal_view():
    assert fabric_text(small()).splitlines() == [
        "lab: 4 hosts n[0-3], 4 planes of 2 T0 and 2 T1 switches; ports 250 Mb/s, trunks 250 Mb/s",
        "",
        "         T1       T0    n0        n1        n2         n3",
        "plane 0  2 up     2 up  238 Mb/s  238 Mb/s  238 Mb/s   238 Mb/s",
        "plane 1  2 up     2 up  238 Mb/s  238 Mb/s  faulty(1)  238 Mb/s",
        "plane 2  2 up     2 up  238 Mb/s  238 Mb/s  238 Mb/s   238 Mb/s",
        "plane 3  2 up(2)  2 up  238 Mb/s  238 Mb/s  238 Mb/s   238 Mb/s",
        "",
        "(1)  FAIL n2 port, plane 1: 1/20 of its siblings, 12 Mb/s of 250 Mb/s",
        "(2)  WARN T0 0 to T1 1, plane 3: loses 5 % of packets",
    ]
    assert "15 of 16 up(1)" in fabric_text(large())
    assert "3 of 4 up(2)" in fabric_text(medium())


@pytest.mark.parametrize("make", [small, medium, large])
def test_the_data_table_says_what_the_picture_says(make):
    rows = [list(map(str, row)) for row in fabric_figure(make()).table.rows]
    assert [row[0] for row in rows] == [str(c.number) for c in callouts(make())]
    assert all(row[3] for row in rows)


def test_without_remarks_the_table_holds_the_measured_rates():
    made = view(2, 1, 1, 1, ports=(Port(host="n0", plane=0, rate_bps=24e7),))
    assert [list(r) for r in fabric_figure(made).table.rows] == [["n0, plane 0", "240 Mb/s"]]
