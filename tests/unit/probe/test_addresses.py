"""Which address of a node others use, and which ports it has: interface tables as they are on real systems.

Names, drivers and addresses as documented: Azure CNI (azure-container-networking docs), docker bridge (docs.docker.com
"Bridge network driver"), libvirt (libvirt.org "Virtual Networking"), Azure HB-series (setup-infiniband), RoCE rails.
"""

from __future__ import annotations

import json

import pytest

from fairlead.lab.plan import describe, place
from fairlead.lab.shape import LabShape
from fairlead.probe.addresses import book_of
from fairlead.records.addressbook import Place, Port
from fairlead.records.codec import to_json
from fairlead.records.facts import NodeFacts
from fairlead.spec import usid
from support.treeparts import LOCAL6, Machine, base, cmd_path, hca, netdev, read

ROUTES = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
DEFAULT = "{}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
HV, MLX, IGB = "hv_netvsc", "mlx5_core", "igb"


def machine(default: str = "", default6: str = "") -> Machine:
    """A node with `lo` alone, and its default routes."""
    m = base(memory_kb=1 << 28)
    m.remove("/sys/class/net/eth0")
    m.put(cmd_path(["ip", "-j", "addr", "show"]), "[]")
    netdev(m, "lo", mac="00:00:00:00:00:00", mtu=65536, operstate="unknown", kind="772", address="127.0.0.1/8")
    m.put("/proc/net/route", ROUTES + (DEFAULT.format(default) if default else ""))
    if default6:
        line = f"{'0' * 32} 00 {'0' * 32} 00 fe80{'0' * 27}1 00000400 00000001 00000000 00000003     {default6}\n"
        m.put("/proc/net/ipv6_route", line + LOCAL6)
    return m


def nic(m: Machine, name: str, address: str = "", driver: str = "", **more) -> None:
    """An interface; with a driver, one that has a device."""
    device = f"0000:{len(m.links):02x}:00.0" if driver else ""
    netdev(m, name, mac="00:0d:3a:00:00:01", mtu=1500, address=address, driver=driver, device=device, **more)


def found(m: Machine, tmp_path, **reached: str) -> Place:
    (one,) = book_of([read(m, tmp_path / "n0")], reached).places
    return one


def test_an_aks_node_has_the_address_of_its_default_route_and_not_that_of_a_pods_bridge(tmp_path):
    m = machine("eth0")
    nic(m, "azure0", "10.224.0.4/16", devtype="bridge")
    nic(m, "azv3b8e0f1c2a4", "169.254.1.1/32")
    nic(m, "cbr0", "10.244.1.1/24", devtype="bridge")
    nic(m, "eth0", "10.224.0.5/16", HV)
    nic(m, "enP30832s1", "", MLX, master="eth0")
    assert found(m, tmp_path) == Place(
        node="n0", address="10.224.0.5", why="default route", interface="eth0", management="10.224.0.5"
    )


@pytest.mark.parametrize("order", ["docker first", "docker last"])
def test_docker_and_libvirt_never_are_the_node_where_there_is_no_default_route(tmp_path, order):
    m = machine()
    inner = [("docker0", "172.17.0.1/16", "bridge"), ("br-9f1c", "172.18.0.1/16", "bridge"), ("veth12ab", "", "")]
    inner += [("virbr0", "192.168.122.1/24", "bridge")]
    if order == "docker first":
        for name, address, devtype in inner:
            nic(m, name, address, devtype=devtype)
    nic(m, "eno1", "10.1.0.7/24", IGB)
    if order == "docker last":
        for name, address, devtype in inner:
            nic(m, name, address, devtype=devtype)
    one = found(m, tmp_path)
    assert (one.address, one.why) == ("10.1.0.7", "physical interface")


def test_a_node_with_bridges_alone_has_no_address(tmp_path):
    m = machine()
    nic(m, "docker0", "172.17.0.1/16", devtype="bridge")
    nic(m, "vethab12", "10.9.0.1/24")
    assert found(m, tmp_path) == Place(node="n0")


def test_an_hb_series_node_has_eth0_for_programs_and_ipoib_as_a_rail(tmp_path):
    m = machine("eth0")
    nic(m, "eth0", "10.0.0.4/24", HV)
    nic(m, "enP1s1", "", MLX, master="eth0")
    nic(m, "ib0", "172.16.1.4/16", MLX, kind="32")
    hca(m, "mlx5_an0", address="0001:00:02.0", numa=0, rate="40 Gb/sec (4X QDR)", link="Ethernet", netdevs=("enP1s1",))
    hca(m, "mlx5_ib0", address="0101:00:00.0", numa=0, rate="400 Gb/sec (4X NDR)", netdevs=("ib0",))
    one = found(m, tmp_path)
    assert (one.address, one.why, one.management) == ("10.0.0.4", "default route", "10.0.0.4")
    assert one.ports == (
        Port(
            rail="ib0",
            address="172.16.1.4",
            interface="ib0",
            device="mlx5_ib0",
            link_layer="InfiniBand",
            guid="0015:5dff:fe00:0001",
            pci="0101:00:00.0",
            numa=0,
        ),
    )


def test_a_compute_node_without_a_default_route_uses_infiniband_before_ethernet(tmp_path):
    m = machine()
    nic(m, "docker0", "172.17.0.1/16", devtype="bridge")
    nic(m, "eno1", "10.1.0.7/24", IGB)
    nic(m, "ib0", "172.16.1.4/16", MLX, kind="32", operstate="down")
    nic(m, "ib1", "172.16.2.4/16", MLX, kind="32")
    one = found(m, tmp_path)
    assert (one.address, one.why) == ("172.16.2.4", "RDMA interface")
    assert [(p.rail, p.address) for p in one.ports] == [("ib0", "172.16.1.4"), ("ib1", "172.16.2.4")]


def test_ib_only_functions_are_rails_without_an_address(tmp_path):
    m = machine("eth0")
    nic(m, "eth0", "10.0.0.4/24", HV)
    for i in (0, 2, 10):
        hca(m, f"mlx5_ib{i}", address=f"010{i:x}:00:00.0", numa=i % 2, rate="800 Gb/sec (4X XDR)")
    ports = found(m, tmp_path).ports
    assert [(p.rail, p.address, p.interface) for p in ports] == [(f"mlx5_ib{i}", "", "") for i in (0, 2, 10)]
    assert {p.link_layer for p in ports} == {"InfiniBand"}


@pytest.mark.parametrize(
    ("nics", "more", "chosen"),
    [
        # an IPv6 default route, where no physical interface has a carrier
        ([("eno1", "2001:db8::7/64", IGB, "down"), ("eno2", "2001:db8:1::7/64", IGB, "down")], {"default6": "eno2"},
         ("2001:db8:1::7", "IPv6 default route")),
        # what Slurm calls the node by
        ([("eno1", "10.1.0.7/24", IGB, "down"), ("eno2", "10.2.0.7/24", IGB, "down")], {"reached": "10.2.0.7"},
         ("10.2.0.7", "address that ssh or Slurm uses")),
        # a name is no address, and one that the node does not have says nothing
        ([("eno1", "10.1.0.7/24", IGB, "down")], {"reached": "n0.example"}, ("10.1.0.7", "interface without carrier")),
        ([("eno1", "10.1.0.7/24", IGB, "up"), ("eno2", "10.2.0.7/24", IGB, "up")], {"ssh": "10.2.0.7"},
         ("10.1.0.7", "physical interface")),
        # a bond, whose members have no address of their own
        ([("bond0", "10.3.0.7/24", "", "up")], {"devtype": "bond"}, ("10.3.0.7", "physical interface")),
        # link-local addresses reach nobody behind a router
        ([("eno1", "fe80::1/64", IGB, "up")], {}, ("", "")),
    ],
)  # fmt: skip
def test_what_is_taken_where_there_is_no_ipv4_default_route(tmp_path, nics, more, chosen):
    m = machine(default6=more.get("default6", ""))
    for name, address, driver, state in nics:
        nic(m, name, address, driver, operstate=state, devtype=more.get("devtype", ""))
    if "ssh" in more:
        m.put("/proc/self/environ", f"SSH_CONNECTION=10.2.0.1 40000 {more['ssh']} 22\0".encode())
    one = found(m, tmp_path, n0=more.get("reached", ""))
    assert (one.address, one.why) == chosen
    assert one.management == more.get("ssh", chosen[0])


def test_a_bridge_that_carries_the_default_route_is_what_the_site_chose(tmp_path):
    m = machine("br0")
    nic(m, "br0", "10.1.0.7/24", devtype="bridge")
    nic(m, "eno1", "", IGB, master="br0")
    nic(m, "docker0", "172.17.0.1/16", devtype="bridge")
    assert found(m, tmp_path).address == "10.1.0.7"


def test_interfaces_that_could_not_be_read_leave_a_reason_and_no_address():
    book = book_of([NodeFacts(node="n0", facts={"net": {"unread": "permission denied", "source": "/sys/class/net"}})])
    assert book.places == (Place(node="n0"),)
    assert "permission denied" in book.unread["n0"]


# ---- what a node's own file says -------------------------------------------------------------------------------------

SHAPE = LabShape(planes=2, t0=2, t1=3, nodes=("n0", "n1", "n2", "n3"))


def host_place(number: int) -> Place:
    return place(SHAPE, describe(SHAPE, (), is_rootless=False).hosts[number])


def test_the_file_goes_before_what_is_found_and_devices_fill_it_in(tmp_path):
    m = machine("eth0")
    nic(m, "eth0", "10.0.0.4/24", HV)
    m.put("/etc/fairlead/place.json", to_json(host_place(3)))
    hca(m, "mlx5_1", address="0102:00:00.0", numa=1, rate="100 Gb/sec", link="Ethernet", netdevs=("eth2",))
    one = found(m, tmp_path)
    assert one.address == str(usid.fabric_address(1, 1))
    assert [p.address for p in one.ports] == [str(usid.port_address(plane, 1, 1)) for plane in range(2)]
    assert [(p.pci, p.numa, p.switch) for p in one.ports] == [("", None, "p0/t0-1"), ("0102:00:00.0", 1, "p1/t0-1")]
    assert (one.seat.t0, one.seat.port, one.steering.by, one.steering.t1) == (1, 1, "usid", 3)


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"schema": 7}), json.dumps({"ports": "all"}), ""])
def test_a_file_that_says_nothing_usable_is_passed_over(tmp_path, text):
    m = machine("eth0")
    nic(m, "eth0", "10.0.0.4/24", HV)
    m.put("/etc/fairlead/place.json", text)
    assert found(m, tmp_path).address == "10.0.0.4"


def claims(node: str, *addresses: str, **more) -> NodeFacts:
    """A node that has these addresses on one interface, by its own word."""
    link = {"driver": "mlx5_core", "type": "1", "operstate": "up", "pci": "0000:01:00.0", "addresses": list(addresses)}
    return NodeFacts(node=node, facts={"net": {"links": {"eth0": link, **more}}})


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8/24", "2001:4860:4860::8888/64", "224.0.0.1/8", "255.255.255.255/32", "0.0.0.0/8", "ff02::1/64", "::/0",
     "240.0.0.1/4", "8.8.8.8/0", "$(reboot)/24", "-c/24", "8.8.8.8"],
)  # fmt: skip
def test_nobody_sends_to_an_address_that_a_node_only_says_is_its_own(address):
    book = book_of([claims("n1", "10.0.0.1/24"), claims("n2", address), claims("n3", "10.0.0.3/24")])
    assert [p.address for p in book.places] == ["10.0.0.1", "", "10.0.0.3"]


def test_global_addresses_in_a_network_that_others_have_too_are_the_sites_own():
    book = book_of([claims("n1", "20.1.2.1/24"), claims("n2", "20.1.2.2/24"), claims("n3", "20.9.9.9/32")])
    assert [p.address for p in book.places] == ["20.1.2.1", "20.1.2.2", ""]


def test_nodes_that_were_given_one_ipv6_address_each_are_in_one_network():
    """DHCPv6 gives a /128 of the subnet's /64, in Azure and AWS."""
    book = book_of(
        [claims("n1", "2603:1030::5/128"), claims("n2", "2603:1030::6/128"), claims("n3", "2603:1031::7/128")]
    )
    assert [p.address for p in book.places] == ["2603:1030::5", "2603:1030::6", ""]


def test_slurm_may_write_ipv6_in_another_way():
    own = claims("n1", "fd00::1/64")
    own.facts["net"]["links"]["eth0"] |= {"driver": "", "pci": "", "operstate": "down"}
    (place,) = book_of([own], {"n1": "FD00:0:0::1"}).places
    assert (place.management, place.why) == ("fd00::1", "address that ssh or Slurm uses")


def test_a_file_on_the_node_proves_no_address_either():
    place = {"schema": "fairlead.place/1", "address": "9.9.9.9", "ports": [{"rail": "r1", "address": "1.1.1.1"}]}
    lying = NodeFacts(node="n2", facts={"net": {"links": {}, "place": place}})
    book = book_of([claims("n1", "10.0.0.1/24"), lying])
    assert [(p.address, [q.address for q in p.ports]) for p in book.places] == [("10.0.0.1", ["10.0.0.1"]), ("", [""])]


@pytest.mark.parametrize("name", ["³", "9" * 5000, "\x1b[2J", "ib" + "0" * 5000])
def test_a_name_of_any_kind_is_sorted_and_drawn(name):
    device = {"netdevs": [], "ports": {name: {"link_layer": "InfiniBand"}}}
    facts = NodeFacts(node="n1", facts={"net": {"links": {name: {"addresses": []}}}, "ib": {"devices": {name: device}}})
    (place,) = book_of([facts]).places
    assert all(port.rail.isprintable() and len(port.rail) < 700 for port in place.ports)


@pytest.mark.parametrize(
    "lie",
    [
        {"seat": {"t0": 10**9, "port": 0}}, {"seat": {"t0": -1, "port": 0}}, {"seat": {"t0": 0, "port": 4096}},
        {"steering": {"by": "usid", "t1": 10**9}}, {"steering": {"trunk_bps": -1}},
        {"ports": [{"rail": "r", "plane": 256}]}, {"ports": [{"rail": "r", "plane": -1}]},
        {"ports": [{"rail": "r" * 5000}]}, {"ports": [{"rail": "r"}] * 257}, {"ports": [{"rail": "r", "rate_bps": -5}]},
        {"address": "x" * 300},
    ],
)  # fmt: skip
def test_a_place_that_cannot_be_is_none(lie):
    """Others reckon with it: ways through the fabric, and what ports carry."""
    record = claims("n1", "10.0.0.1/24")
    record.facts["net"]["place"] = {"schema": "fairlead.place/1", **lie}
    (place,) = book_of([record]).places
    assert (place.address, place.seat, place.steering.t1) == ("10.0.0.1", None, 0)
    assert [p.rail for p in place.ports] == ["eth0"]
