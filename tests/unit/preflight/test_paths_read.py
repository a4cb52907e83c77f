"""Which addresses are tested on nodes that are no lab: the default route's, and each rail's."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.preflight.paths import paths_of, port_bps
from fairlead.records.facts import NodeFacts
from fairlead.spec.model import Access, Fabric, Lab, Pool, Spec

SPEC = Spec(schema=1, pools=(Pool(name="p", size="other", nodes=NodeSet("n[0-1]")),), access=Access(via="ssh"))


def link(*addresses: str, kind: str = "1", driver: str = "", master: str = "") -> dict:
    return {"addresses": list(addresses), "type": kind, "driver": driver, "master": master}


def paths(default: str, **links: dict):
    facts = [NodeFacts(node=n, facts={"net": {"default_interface": default, "links": links}}) for n in ("n0", "n1")]
    return paths_of(facts, SPEC)


def test_the_default_route_and_every_rail():
    found = paths(
        "eth0",
        docker0=link("172.17.0.1/16"),
        eth0=link("10.0.0.4/24"),
        ib0=link("172.16.1.4/16", kind="32"),
        ib1=link(kind="32"),
        vf=link("10.9.0.1/24", driver="../../bus/pci/drivers/mlx5_core", master="eth0"),
    )
    assert found.labels == ("default route", "ib0")
    assert found.addresses["n0"] == ("10.0.0.4", "172.16.1.4")


def test_without_a_default_route_the_first_interface_that_reaches_others():
    found = paths("", eth0=link("10.99.1.0/16"), eth1=link("10.98.1.0/16"), lo=link("127.0.0.1/8", "::1/128"))
    assert found.addresses["n1"] == ("10.99.1.0",)


def test_a_node_that_has_rails_alone_uses_the_first():
    found = paths("", ib0=link("172.16.1.4/16", kind="32"), lo=link("127.0.0.1/8"))
    assert found.addresses["n0"] == ("172.16.1.4", "172.16.1.4")


def test_a_node_without_any_address_has_none():
    assert paths("", lo=link("127.0.0.1/8")).addresses["n0"] == ("",)


@pytest.mark.parametrize(("size", "bps"), [("Standard_ND96isr_H200_v5", 80e9), ("other", 0)])
def test_what_the_slowest_port_should_carry_is_known_by_vm_size(size, bps):
    spec = msgspec.structs.replace(SPEC, pools=(Pool(name="p", size=size, nodes=NodeSet("n[0-1]")),))
    assert port_bps(spec, NodeSet("n[0-1]")) == bps


@pytest.mark.parametrize(
    ("fabric", "lab", "mbps"),
    [
        (Fabric(planes=2, t0=2, t1=2), Lab(), 250),
        (Fabric(planes=2, t0=2, t1=2), Lab(rate_mbps=100), 100),
        (Fabric(planes=2, t0=2, t1=1), Lab(rate_mbps=100), 50),
        (Fabric(planes=2, t0=2, t1=1), Lab(rate_mbps=100, uplink_rate_mbps=400), 100),
        (Fabric(planes=2, t0=1, t1=4), Lab(uplink_rate_mbps=60), 60),
    ],
)
def test_what_a_port_of_the_lab_should_carry_is_its_share_of_the_uplinks(fabric, lab, mbps):
    pools = (Pool(name="p", size="lab", nodes=NodeSet("n[0-3]")),)
    spec = Spec(schema=1, pools=pools, access=Access(via="lab"), fabric=fabric, lab=lab)
    assert port_bps(spec, NodeSet("n[0-3]")) == mbps * 1e6
