"""Netlink, against others: the kernel's header, pyroute2's encoder, and the answers of a real kernel with soft RoCE as
the tool `rdma` reads them. Nothing here is encoded by fairlead.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2 import IPRoute
from pyroute2.netlink import nla, nlmsg

from fairlead.watch.onnode import links, rdma, wire
from fairlead.watch.onnode.sample import Machine

HEADER = Path("/usr/include/rdma/rdma_netlink.h")
REPLAY = json.loads((Path(__file__).parents[2] / "golden" / "rdma_netlink.json").read_text())


def numbers() -> dict[str, int]:
    """Every attribute's number, counted in the kernel's own header (linux-libc-dev)."""
    if not HEADER.exists():
        pytest.skip(f"{HEADER} is not there: apt install linux-libc-dev")
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    body = text.split("enum rdma_nldev_attr {")[1].split("}")[0]
    found, last = {}, -1
    for word in filter(None, (w.strip() for w in body.split(","))):
        name, _, same = (w.strip() for w in word.partition("="))
        last = found[same] if same else last + 1
        found[name] = last
    return found


def test_every_number_is_the_kernels():
    theirs = numbers()
    ours = {n: v for n, v in vars(rdma).items() if isinstance(v, int) and re.match(r"DEV_|PORT_|RES_|FW_|NODE_", n)}
    assert len(ours) == 24
    assert {n: theirs["RDMA_NLDEV_ATTR_" + n] for n in ours} == ours
    assert theirs["RDMA_NLDEV_ATTR_RES_CTX"] + 1 == theirs["RDMA_NLDEV_ATTR_RES_CTX_ENTRY"]
    commands = HEADER.read_text().split("enum rdma_nldev_command {")[1].split("RDMA_NLDEV_NUM_OPS")[0]
    words = re.findall(r"RDMA_NLDEV_CMD_(\w+)( = 9)?", commands)
    at, told = -1, {}
    for name, jump in words:
        at = 9 if jump else at + 1
        told[name] = at
    assert {"dev": told["GET"], "qp": told["RES_QP_GET"], "cm_id": told["RES_CM_ID_GET"], "mr": told["RES_MR_GET"],
            "ctx": told["RES_CTX_GET"]} == rdma.COMMANDS  # fmt: skip


# ---- a real kernel ---------------------------------------------------------------------------------------------------


def replayed(what: str) -> list[bytes]:
    """The payloads of the kernel's answer."""
    return [
        payload
        for data in REPLAY["netlink"][what]
        for kind, _, _, payload in wire.messages(bytes.fromhex(data))
        if kind != wire.NLMSG_DONE
    ]


def test_devices_of_a_real_kernel_are_those_that_rdma_shows():
    assert [(d["index"], d["name"], d["guid"]) for d in rdma.devices(replayed("dev"))] == [
        (d["ifindex"], d["ifname"], int(d["node_guid"].replace(":", ""), 16)) for d in REPLAY["rdma"]["dev"]
    ]


def test_queue_pairs_of_a_real_kernel_are_those_that_rdma_shows():
    ours = list(rdma.objects("qp", replayed("qp")))
    theirs = REPLAY["rdma"]["qp"]
    assert len(ours) >= 5
    for qp, said in zip(ours, theirs, strict=True):
        kind, state = rdma.qp_words(qp)
        assert (qp["port"], qp["lqpn"], kind, state) == (said["port"], said["lqpn"], said["type"], said["state"])
        assert qp.get("rqpn") == said.get("rqpn")
        assert (qp.get("pid"), qp.get("kern")) == ((said["pid"], None) if "pid" in said else (None, said["comm"]))


def test_connections_of_a_real_kernel_are_those_that_rdma_shows():
    ours, theirs = list(rdma.objects("cm_id", replayed("cm_id"))), REPLAY["rdma"]["cm_id"]
    assert len(ours) >= 3
    for one, said in zip(ours, theirs, strict=True):
        assert one.get("pid") == said.get("pid")
        assert rdma.CM_STATES[one["state"]] == said["state"]
        for key, theirs_ in (("src", "src-addr"), ("dst", "dst-addr")):
            whole = said[theirs_]
            assert (one.get(key) or "") == ("" if whole == "0.0.0.0:0" else whole)


def test_memory_regions_and_contexts_of_a_real_kernel_are_those_that_rdma_shows():
    regions = list(rdma.objects("mr", replayed("mr")))
    assert [(m["pid"], m["mrlen"]) for m in regions] == [(m["pid"], m["mrlen"]) for m in REPLAY["rdma"]["mr"]]
    contexts = list(rdma.objects("ctx", replayed("ctx")))
    assert [c["pid"] for c in contexts] == [c["pid"] for c in REPLAY["rdma"]["ctx"]]
    assert len(contexts) >= 4


# ---- what soft RoCE does not have, by pyroute2's encoder -------------------------------------------------------------


def encoded(of: str, objects: list[dict]) -> bytes:
    """Objects as one message of nldev, by pyroute2's classes and the header's numbers."""
    theirs = {name.removeprefix("RDMA_NLDEV_ATTR_"): number for name, number in numbers().items()}
    fields = {
        "PORT_INDEX": "uint32", "RES_LQPN": "uint32", "RES_RQPN": "uint32", "RES_TYPE": "uint8", "RES_STATE": "uint8",
        "RES_PID": "uint32", "RES_KERN_NAME": "asciiz", "RES_PS": "uint32", "RES_SRC_ADDR": "cdata",
        "RES_DST_ADDR": "cdata", "RES_MRLEN": "uint64", "RES_RQ_PSN": "uint32", "DRIVER": "cdata", "RES_PDN": "uint32",
    }  # fmt: skip

    class Entry(nla):
        prefix = ""
        nla_map = tuple((theirs[name], name, kind) for name, kind in fields.items())

    class Table(nla):
        prefix = ""
        nla_map = ((theirs[of] + 1, "ENTRY", "entry"),)
        entry = Entry

    class Message(nlmsg):
        prefix = ""
        fields = ()
        nla_map = ((theirs["DEV_INDEX"], "DEV_INDEX", "uint32"), (theirs["DEV_NAME"], "DEV_NAME", "asciiz"),
                   (theirs[of], "TABLE", "table"))  # fmt: skip
        table = Table

    rows = [("ENTRY", {"attrs": list(one.items())}) for one in objects]
    message = Message()
    message["attrs"] = [("DEV_INDEX", 0), ("DEV_NAME", "mlx5_0"), ("TABLE", {"attrs": rows})]
    message["header"]["type"] = rdma.NLDEV + 10
    message.encode()
    return bytes(message.data)


def payloads(data: bytes) -> list[bytes]:
    return [payload for _, _, _, payload in wire.messages(data)]


def test_xrc_dct_and_unknown_types_and_kernel_owners_decode():
    data = encoded("RES_QP", [
        {"PORT_INDEX": 1, "RES_LQPN": 4711, "RES_RQPN": 99, "RES_TYPE": 9, "RES_STATE": 3, "RES_PID": 1 << 21},
        {"PORT_INDEX": 2, "RES_LQPN": 0xFFFFFF, "RES_TYPE": 0xFF, "RES_STATE": 2, "RES_KERN_NAME": "ko2iblnd"},
        {"RES_LQPN": 1, "RES_TYPE": 77, "RES_STATE": 99, "RES_PDN": 3, "DRIVER": b"\x01\x02\x03"},
    ])  # fmt: skip
    first, second, third = rdma.objects("qp", payloads(data))
    assert first == {"port": 1, "lqpn": 4711, "rqpn": 99, "type": 9, "state": 3, "pid": 1 << 21}
    assert rdma.qp_words(first) == ("XRC_INI", "RTS")
    assert (second["kern"], rdma.qp_words(second)) == ("ko2iblnd", ("DRIVER", "RTR"))
    assert rdma.qp_words(third) == ("type 77", "state 99")


def sockaddr(family: int, body: bytes) -> bytes:
    return (struct.pack("=H", family) + body).ljust(128, b"\0")


def test_addresses_of_every_family_decode():
    v4 = sockaddr(socket.AF_INET, struct.pack(">H", 7471) + socket.inet_aton("172.16.1.7"))
    v6 = sockaddr(socket.AF_INET6, struct.pack(">HI", 18515, 0) + socket.inet_pton(socket.AF_INET6, "fe80::1"))
    gid = socket.inet_pton(socket.AF_INET6, "fe80::b83f:d203:ab:1")
    ib = sockaddr(27, struct.pack(">HI", 0xFFFF, 0) + gid + struct.pack(">QQ", 0x01061234, 0xFFFF) + b"\0" * 8)
    data = encoded("RES_CM_ID", [
        {"RES_PS": 0x106, "RES_STATE": 5, "RES_SRC_ADDR": v4, "RES_DST_ADDR": ib, "RES_PID": 7},
        {"RES_STATE": 8, "RES_SRC_ADDR": v6, "RES_DST_ADDR": b"\0" * 128, "RES_PID": 7},
        {"RES_STATE": 0, "RES_SRC_ADDR": sockaddr(99, b"x"), "RES_DST_ADDR": b"\x02", "RES_PID": 7},
    ])  # fmt: skip
    first, second, third = rdma.objects("cm_id", payloads(data))
    assert (first["src"], first["dst"]) == ("172.16.1.7:7471", "[fe80::b83f:d203:ab:1]:0x1061234")
    assert (second["src"], second["dst"]) == ("[fe80::1]:18515", "")
    assert (third["src"], third["dst"]) == ("family 99", "family 2")


def test_memory_regions_of_terabytes_decode():
    data = encoded("RES_MR", [{"RES_MRLEN": 1 << 41, "RES_PID": 7}, {"RES_MRLEN": 0, "RES_KERN_NAME": "x"}])
    assert [m["mrlen"] for m in rdma.objects("mr", payloads(data))] == [1 << 41, 0]


# ---- bytes that are none ---------------------------------------------------------------------------------------------


@given(st.binary(max_size=400), st.sampled_from(["qp", "cm_id", "mr", "ctx"]))
def test_any_bytes_are_objects_or_garbled_and_nothing_else(data, what):
    for read in (lambda: list(rdma.objects(what, [data])), lambda: list(wire.messages(data)),
                 lambda: rdma.devices([data]), lambda: links.links_of([data])):  # fmt: skip
        with contextlib.suppress(wire.Garbled):
            read()


@given(st.data())
def test_a_kernels_answer_with_any_byte_changed_is_objects_or_garbled(data):
    payload = bytearray(data.draw(st.sampled_from(replayed("qp") + replayed("cm_id") + replayed("dev"))))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    for what in rdma.TABLES:
        with contextlib.suppress(wire.Garbled):
            for one in rdma.objects(what, [bytes(payload)]):
                rdma.qp_words(one)


# ---- the kernel that runs this ---------------------------------------------------------------------------------------


def test_links_of_this_machine_are_those_that_pyroute2_reads():
    asked = wire.Asked(links.NETLINK_ROUTE)
    with IPRoute() as route:
        names = frozenset(link.get_attr("IFLA_IFNAME") for link in route.get_links())
        ours = links.links_of(asked.dump(links.RTM_GETLINK, links.ALL_LINKS), names)
        theirs = {link.get_attr("IFLA_IFNAME"): link for link in route.get_links()}
    asked.close()
    assert set(ours) == set(theirs) - {"lo"}
    for name, link in ours.items():
        assert link["operstate"] == theirs[name].get_attr("IFLA_OPERSTATE").lower()
        assert link["carrier_downs"] == theirs[name].get_attr("IFLA_CARRIER_DOWN_COUNT")
        stats = theirs[name].get_attr("IFLA_STATS64")
        for key in links.STATS:
            assert link[key] <= stats[key], "they were read later"
            assert link[key] >= stats[key] * 0.5


def test_a_kernel_without_rdma_is_told_as_one_that_has_nothing_to_read(tmp_path):
    from fairlead.probe.readers.tree import Tree

    try:
        wire.Asked(rdma.NETLINK_RDMA).close()
    except OSError:
        machine = Machine(Tree("/"), [])
        found = machine.look()
        machine.close()
        assert found["qps"]["expected"] == "yes"
        assert found["qps"]["unread"]
    else:
        pytest.skip("this kernel has RDMA")


def test_only_the_kernel_is_believed():
    """Another process may send to our socket; what it says is not taken (netlink(7): the kernel's port is 0)."""
    asked = wire.Asked(2, limit_s=0.5)  # NETLINK_USERSOCK, where processes may
    liar = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 2)
    liar.bind((0, 0))
    mine = asked.socket.getsockname()[0]
    asked.sequence = 0
    lie = wire.HEADER.pack(20, 99, 0, 1, 0) + b"lie!"
    liar.sendto(lie + wire.HEADER.pack(16, wire.NLMSG_DONE, 0, 1, 0), (mine, 0))
    before = time.monotonic()
    with pytest.raises(OSError):
        asked.dump(99, b"")
    assert time.monotonic() - before < 5
    for one in (asked.socket, liar):
        one.close()
