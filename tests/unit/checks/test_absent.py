"""Which RDMA device is missing, where one is."""

from __future__ import annotations

import copy
from collections.abc import Callable

import msgspec
import pytest

from fairlead.checks import judge
from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from support import trees
from support.judging import facts_of, of, spec_of

H100 = spec_of("Standard_ND96isr_H100_v5", nodes="n[0-3]")
ANY = spec_of("", nodes="n[0-3]")
NAMES = [f"mlx5_ib{i}" for i in range(8)]


def pool(num: int = 4) -> list[NodeFacts]:
    first = facts_of(trees.nd_h100_v5())
    return [msgspec.structs.replace(first, node=f"n{i}", facts=copy.deepcopy(first.facts)) for i in range(num)]


def said(records: list[NodeFacts], spec: object, code: str) -> list[Finding]:
    return [f for f in of(judge(records, spec), code) if f.verdict is Verdict.FAIL]  # type: ignore[arg-type]


def lose(record: NodeFacts, *names: str) -> None:
    for name in names:
        del record.facts["ib"]["devices"][name]


def unplug(record: NodeFacts, *names: str) -> None:
    """Gone from PCI, too."""
    for name in names:
        del record.facts["pci"]["devices"][record.facts["ib"]["devices"].pop(name)["pci"]]


@pytest.mark.parametrize(("spec", "code"), [(H100, "ib/count"), (ANY, "skew/port-count")])
@pytest.mark.parametrize("how", [lose, unplug])
def test_the_missing_device_is_named(how: Callable[..., None], spec: object, code: str) -> None:
    records = pool()
    how(records[2], "mlx5_ib3")
    (found,) = said(records, spec, code)
    assert (found.subject.kind, found.subject.nodes, found.subject.name) == ("device", ("n2",), "mlx5_ib3")
    assert found.message.endswith("; not there: mlx5_ib3 (0104:00:00.0)")
    assert found.data["missing"] == [{"device": "mlx5_ib3", "pci": "0104:00:00.0"}]
    assert found.evidence[-1].source == "RDMA devices of n[0-1,3]"


def test_several_are_all_named_and_nodes_that_lack_others_stand_apart() -> None:
    records = pool()
    lose(records[0], "mlx5_ib3")
    lose(records[1], "mlx5_ib5", "mlx5_ib6")
    one, two = said(records, H100, "ib/count")
    assert (one.subject.nodes, one.subject.name) == (("n0",), "mlx5_ib3")
    assert (two.subject.kind, two.subject.nodes) == ("node", ("n1",))
    assert two.message == "6 of 8 RDMA ports; not there: mlx5_ib5 (0106:00:00.0), mlx5_ib6 (0107:00:00.0)"


def test_odd_nodes_that_lack_different_devices_are_told_apart() -> None:
    records = pool()
    lose(records[0], "mlx5_ib3")
    lose(records[1], "mlx5_ib4")
    records += [msgspec.structs.replace(r, node=f"m{i}") for i, r in enumerate(pool(2))]
    found = said(records, spec_of("", nodes="n[0-3],m[0-1]"), "skew/port-count")
    assert {(f.subject.nodes, f.subject.name) for f in found} == {(("n0",), "mlx5_ib3"), (("n1",), "mlx5_ib4")}


def test_names_that_moved_up_do_not_mislead() -> None:
    """mlx5_N is counted as the driver finds them: of four, without the second, the rest are called 0 to 2."""
    records = pool()
    for record in records:
        devices = record.facts["ib"]["devices"]
        an = {k: v for k, v in devices.items() if k not in NAMES}
        kept = [devices[n] for n in NAMES if not (record.node == "n1" and n == "mlx5_ib1")]
        record.facts["ib"]["devices"] = an | {f"mlx5_{i}": value for i, value in enumerate(kept)}
    (found,) = said(records, H100, "ib/count")
    assert found.subject.name == "mlx5_1"
    assert found.data["missing"] == [{"device": "mlx5_1", "pci": "0102:00:00.0"}]


def test_where_addresses_differ_from_node_to_node_names_decide() -> None:
    records = pool()
    for device in records[1].facts["ib"]["devices"].values():
        device["pci"] = "f" + device["pci"][1:]
    lose(records[1], "mlx5_ib6")
    (found,) = said(records, H100, "ib/count")
    assert found.subject.name == "mlx5_ib6"


def test_a_node_alone_names_the_function_that_has_no_device() -> None:
    records = pool(1)
    lose(records[0], "mlx5_ib3")
    (found,) = said(records, H100, "ib/count")
    assert found.message == "7 of 8 RDMA ports; not there: 0104:00:00.0"
    assert found.subject.name == "0104:00:00.0"


def test_a_node_alone_names_the_number_left_out() -> None:
    records = pool(1)
    unplug(records[0], "mlx5_ib3")
    assert said(records, H100, "ib/count")[0].subject.name == "mlx5_ib3"


def test_what_cannot_be_told_is_not_guessed() -> None:
    """Where the driver counts, a number left out says nothing; and PCI shows nothing idle."""
    records = pool(1)
    unplug(records[0], "mlx5_ib3")
    devices = records[0].facts["ib"]["devices"]
    records[0].facts["ib"]["devices"] = {name.replace("_ib", "_"): value for name, value in devices.items()}
    (found,) = said(records, H100, "ib/count")
    assert (found.subject.kind, found.message) == ("node", "7 of 8 RDMA ports")
    assert "missing" not in found.data


def test_a_peer_with_strange_facts_is_not_asked() -> None:
    records = pool()
    lose(records[0], "mlx5_ib3")
    records[1].facts["ib"]["devices"] = 7
    records[2].facts["ib"]["devices"]["mlx5_ib0"] = {"unread": "no time", "source": "x"}
    assert [f.subject.name for f in said(records, H100, "ib/count")] == ["mlx5_ib3"]
