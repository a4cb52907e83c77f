"""Each kind of fault: what it asks for, and what it refuses."""

from __future__ import annotations

import pytest

from fairlead.errors import LabError, UsageError
from fairlead.lab import hosttree
from fairlead.lab.faults import catalog
from fairlead.lab.faults.effects import Effects, HostFile, Port
from fairlead.lab.faults.kinds import View
from fairlead.lab.shape import LabShape

SHAPE = LabShape()


def tree(node):
    ports = [{"device": f"eth{p + 1}", "mac": f"02:0{p}:00:00:00:00", "address": "::", "gbps": 100} for p in range(4)]
    return hosttree.generated(hosttree.shows(node, 0, gpus=4, ports=ports))


VIEW = View(SHAPE, tree)


def effects(name, target, **settings):
    kind = catalog.kind_of(name)
    assert target in catalog.targets_of(kind, target, VIEW)
    return kind.effects(VIEW, 7, target, catalog.settings_of(kind, settings))


def test_a_link_goes_down_at_its_far_end_and_the_hca_says_so():
    asked = effects("link-down", "p1/n0")
    assert asked.down == {Port("p1-t0-0", "d0"): 7}
    assert asked.files[HostFile("n0", "sys/class/infiniband/mlx5_1/ports/1/state")] == b"1: DOWN\n"


def test_a_link_between_switches_goes_down_at_the_t1():
    assert effects("link-down", "p1/t0-1/t1-0").down == {Port("p1-t1-0", "d1"): 7}


@pytest.mark.parametrize(
    ("side", "ports"),
    [
        ("both", {Port("p2-t0-1", "d1"), Port("n3", "eth3")}),
        ("up", {Port("p2-t0-1", "d1")}),
        ("down", {Port("n3", "eth3")}),
    ],
)
def test_a_drop_is_at_the_ends_where_packets_arrive(side, ports):
    asked = effects("silent-drop", "p2/n3", side=side)
    assert set(asked.filters) == ports
    assert not asked.down
    assert all("drop" in text for tables in asked.filters.values() for text in tables.values())


@pytest.mark.parametrize(("side", "port"), [("up", Port("n3", "eth3")), ("down", Port("p2-t0-1", "d1"))])
def test_a_packet_is_doubled_by_the_end_that_sends_it(side, port):
    assert set(effects("duplicate", "p2/n3", side=side).filters) == {port}


def test_one_way_means_one_senders_addresses_at_the_others_ports():
    asked = effects("one-way-drop", "n0:n3")
    assert set(asked.filters) == {Port("n3", f"eth{p + 1}") for p in range(4)}
    assert "fcbb:bb02:e000:1000::" in asked.filters[Port("n3", "eth3")][7]


def test_a_switch_goes_down_with_all_its_ports():
    assert set(effects("switch-down", "p0/t0-0").down) == {Port("p0-t0-0", d) for d in ("d0", "d1", "u0", "u1")}
    assert set(effects("switch-down", "p0/t1-1").down) == {Port("p0-t1-1", d) for d in ("d0", "d1")}


def test_a_dead_host_loses_carrier_everywhere_also_in_management():
    asked = effects("node-dead", "n2")
    assert asked.dead == {"n2": 7}
    assert set(asked.down) == {*(Port(f"p{p}-t0-1", "d0") for p in range(4)), Port("mgmt", "m2")}


def test_a_share_is_written_in_millionths():
    text = effects("loss", "p0/n0", percent="0.1", side="up").filters[Port("p0-t0-0", "d0")][7]
    assert "numgen random mod 1000000 < 1000 counter drop" in text


def test_only_capable_packets_are_marked():
    text = effects("ecn-mark", "p0/n0", percent="100", side="up").filters[Port("p0-t0-0", "d0")][7]
    assert "ip6 ecn != not-ect" in text


def test_a_version_changes_wherever_it_is_shown():
    files = effects("driver-version", "n0", version="535.1").files
    assert files[HostFile("n0", "sys/module/nvidia/version")] == b"535.1\n"
    assert b"535.1" in files[HostFile("n0", "proc/driver/nvidia/version")]
    assert b"<driver_version>535.1<" in files[HostFile("n0", "run/fairlead/cmd/nvidia-smi_-q_-x")]
    assert not any(hosttree.DRIVER_VERSION.encode() in content for content in files.values())


def test_a_missing_hca_is_missing_whole():
    files = effects("missing-hca", "n0", hca="mlx5_2").files
    assert files
    assert set(files.values()) == {None}
    assert {f.path for f in files} == {
        path
        for path in tree("n0")
        if path.startswith(("sys/class/infiniband/mlx5_2/", "sys/class/infiniband_verbs/uverbs2/"))
        or path.endswith("/infiniband_verbs/uverbs2/ibdev")
    }
    with pytest.raises(LabError) as caught:
        effects("missing-hca", "n0", hca="mlx5_9")
    assert caught.value.code == "lab/no-such-part"


def test_any_file_can_be_given_content_or_hidden():
    assert effects("file", "n0", path="/etc/x", content="a\\nb").files == {HostFile("n0", "etc/x"): b"a\nb"}
    assert effects("file", "n0", path="/etc/x").files == {HostFile("n0", "etc/x"): None}
    assert effects("file", "n0", path="/etc//y/../x", content="").files == {HostFile("n0", "etc/x"): b""}
    said = effects("file", "n0", path="/x", content="\\\\n\\x é").files
    assert said == {HostFile("n0", "x"): "\\n\\x é".encode()}


def test_a_share_of_all_is_no_condition():
    assert "numgen" not in effects("loss", "p0/n0", percent="100", side="up").filters[Port("p0-t0-0", "d0")][7]


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        ("loss", "percent", ["100.1", "-1", "1e2", "", "nan", "5%"]),
        ("disk-full", "percent", ["100.5", "101"]),
        ("rate", "mbps", ["0", "0.0", "-1", "inf"]),
        ("slow-node", "percent", ["0", "0.00"]),
        ("flap", "down_s", ["0", "00", "0.0", "0.09", "-1"]),
        ("loss", "side", ["left", "UP"]),
        ("file", "path", ["etc/x", ""]),
    ],
)
def test_values_outside_their_range_are_refused(kind, name, values):
    for value in values:
        with pytest.raises(UsageError) as caught:
            catalog.settings_of(catalog.kind_of(kind), {name: value})
        assert caught.value.code == "lab/bad-setting"
        assert f"{name} of {kind} cannot be `{value}`" in caught.value.message


def test_small_values_inside_their_range_are_taken():
    for kind, name, value in (("flap", "down_s", "0.1"), ("flap", "up_s", "10.05"), ("rate", "mbps", "0.5")):
        assert catalog.settings_of(
            catalog.kind_of(kind), {"mbps": "1", name: value} if kind == "rate" else {name: value}
        )


@pytest.mark.parametrize("name", catalog.KINDS)
def test_every_kind_asks_for_something(name):
    kind = catalog.kind_of(name)
    target = {"link": "p0/n0", "switch": "p0/t0-0", "host": "n0", "pair": "n0:n1"}[kind.on]
    given = {
        n: {"mbps": "10", "version": "1", "path": "/etc/x"}[n] for n, s in kind.settings.items() if s.default is None
    }
    assert effects(name, target, **given) != Effects()


@pytest.mark.parametrize("name", catalog.KINDS)
def test_every_default_is_a_value_it_takes(name):
    kind = catalog.kind_of(name)
    given = {n: s.default for n, s in kind.settings.items() if s.default is not None}
    needed = {n: "1" for n, s in kind.settings.items() if s.default is None} | (
        {"path": "/x"} if name == "file" else {}
    )
    assert catalog.settings_of(kind, given | needed) == given | needed


def test_patterns_stand_for_one_part_each():
    link = catalog.kind_of("loss")
    assert catalog.targets_of(link, "p*/n1", VIEW) == ["p0/n1", "p1/n1", "p2/n1", "p3/n1"]
    assert catalog.targets_of(link, "p0/*", VIEW) == ["p0/n0", "p0/n1", "p0/n2", "p0/n3"]
    assert len(catalog.targets_of(link, "p0/*/*", VIEW)) == 4


@pytest.mark.parametrize(
    ("call", "code", "near"),
    [
        (lambda: catalog.kind_of("silent-dorp"), "lab/unknown-fault", "silent-drop"),
        (lambda: catalog.targets_of(catalog.kind_of("loss"), "p2/n9", VIEW), "lab/unknown-target", "p2/n3"),
        (lambda: catalog.targets_of(catalog.kind_of("node-dead"), "n9", VIEW), "lab/unknown-target", "n3"),
        (lambda: catalog.settings_of(catalog.kind_of("loss"), {"precent": "1"}), "lab/bad-setting", "percent"),
        (
            lambda: catalog.settings_of(catalog.kind_of("loss"), {"percent": "101"}),
            "lab/bad-setting",
            "percent of packets",
        ),
        (lambda: catalog.settings_of(catalog.kind_of("rate"), {}), "lab/bad-setting", "mbps"),
        (lambda: catalog.settings_of(catalog.kind_of("link-down"), {"side": "up"}), "lab/bad-setting", "it has none"),
    ],
)
def test_slips_are_refused_with_what_was_meant(call, code, near):
    with pytest.raises(UsageError) as caught:
        call()
    assert caught.value.code == code
    assert near in caught.value.message
