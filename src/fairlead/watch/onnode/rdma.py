"""RDMA objects as the kernel lists them over netlink: devices, queue pairs, connections, memory regions, contexts.

Numbers: linux include/uapi/rdma/rdma_netlink.h, which calls their order ABI; what stands in which: nldev.c,
fill_res_qp_entry and its neighbours. Attributes this file does not know are passed over: newer kernels have more.
Pure: bytes in, dicts out.
"""

from __future__ import annotations

import socket
import struct
import sys

from fairlead.watch.onnode.wire import attribute, attributes, string, unsigned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

NETLINK_RDMA = 20
NLDEV = 5 << 10
"""Client RDMA_NL_NLDEV; the operation stands in the low bits."""
COMMANDS = {"dev": 1, "qp": 10, "cm_id": 11, "mr": 13, "ctx": 22}
"""RDMA_NLDEV_CMD_GET, _RES_QP_GET, _RES_CM_ID_GET, _RES_MR_GET, _RES_CTX_GET."""

DEV_INDEX, DEV_NAME, PORT_INDEX, FW_VERSION, NODE_GUID = 1, 2, 3, 5, 6
RES_QP, RES_QP_ENTRY, RES_LQPN, RES_RQPN, RES_TYPE, RES_STATE, RES_PID, RES_KERN_NAME = 19, 20, 21, 22, 26, 27, 28, 29
RES_CM_ID, RES_CM_ID_ENTRY, RES_PS, RES_SRC_ADDR, RES_DST_ADDR = 30, 31, 32, 33, 34
RES_MR, RES_MR_ENTRY, RES_MRLEN = 40, 41, 45
DEV_PROTOCOL = 67
RES_CTX, RES_CTX_ENTRY = 86, 87
TABLES = {"qp": RES_QP, "cm_id": RES_CM_ID, "mr": RES_MR, "ctx": RES_CTX}

QP_STATES = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
"""linux include/rdma/ib_verbs.h: enum ib_qp_state."""
QP_TYPES = {0: "SMI", 1: "GSI", 2: "RC", 3: "UC", 4: "UD", 5: "RAW_IPV6", 6: "RAW_ETHERTYPE", 8: "RAW_PACKET",
            9: "XRC_INI", 10: "XRC_TGT", 0xFF: "DRIVER"}  # fmt: skip
"""enum ib_qp_type. DRIVER is what vendors add, such as mlx5's DCT and DCI."""
CM_STATES = ("IDLE", "ADDR_QUERY", "ADDR_RESOLVED", "ROUTE_QUERY", "ROUTE_RESOLVED", "CONNECT", "DISCONNECT",
             "ADDR_BOUND", "LISTEN", "DEVICE_REMOVAL", "DESTROYING")  # fmt: skip
"""linux include/rdma/rdma_cm.h: enum rdma_cm_state, as the tool `rdma` names them."""
AF_IB = 27
SOCKADDR_IB = struct.Struct(">H4x16sQ")
"""Behind the family: P_Key, flow, GID, service id (linux include/uapi/rdma/ib_user_sa.h, rdma/ib.h)."""


def request(index: int | None) -> bytes:
    """The body of a request: about one device, or about all."""
    return b"" if index is None else attribute(DEV_INDEX, struct.pack("=I", index))


def devices(payloads: list[bytes]) -> list[dict[str, Any]]:
    """`index`, `name`, `fw_ver`, `protocol`, `guid`, `num_ports` of each device."""
    return [_pick(payload, _DEVICE) for payload in payloads]


def objects(what: str, payloads: list[bytes]) -> Iterator[dict[str, Any]]:
    """Every object of a kind (`qp`, `cm_id`, `mr`, `ctx`) of one device. Raises Garbled.

    `pid` is missing where the kernel is the owner, which then has a name (`kern`), and where the process has ended.
    """
    table = TABLES[what]
    for payload in payloads:
        for kind, body in attributes(payload):
            if kind == table:
                for entry, fields in attributes(body):
                    if entry == table + 1:
                        yield _pick(fields, _OBJECT)


def _pick(data: bytes, wanted: Mapping[int, tuple[str, Callable[[bytes], Any]]]) -> dict[str, Any]:
    found = {}
    for kind, body in attributes(data):
        known = wanted.get(kind)
        if known is not None:
            found[known[0]] = known[1](body)
    return found


def address(data: bytes) -> str:
    """A socket address as text: `192.0.2.1:7471`, `[2001:db8::1]:7471`, `[GID]:service`; empty for none.

    The kernel gives a whole sockaddr_storage, or as much of it as the family needs.
    """
    family = int.from_bytes(data[:2], sys.byteorder)
    if family == socket.AF_INET and len(data) >= 8:
        port = int.from_bytes(data[2:4], "big")
        return "%s:%d" % (socket.inet_ntop(socket.AF_INET, data[4:8]), port) if any(data[2:8]) else ""
    if family == socket.AF_INET6 and len(data) >= 24:
        port = int.from_bytes(data[2:4], "big")
        return "[%s]:%d" % (socket.inet_ntop(socket.AF_INET6, data[8:24]), port) if any(data[2:24]) else ""
    if family == AF_IB and len(data) >= 2 + SOCKADDR_IB.size:
        _, gid, service = SOCKADDR_IB.unpack_from(data, 2)
        return "[%s]:0x%x" % (socket.inet_ntop(socket.AF_INET6, gid), service)
    return "family %d" % family if family else ""


_DEVICE = {
    DEV_INDEX: ("index", unsigned),
    DEV_NAME: ("name", string),
    PORT_INDEX: ("num_ports", unsigned),
    FW_VERSION: ("fw_ver", string),
    NODE_GUID: ("guid", unsigned),
    DEV_PROTOCOL: ("protocol", string),
}
_OBJECT = {
    PORT_INDEX: ("port", unsigned),
    RES_LQPN: ("lqpn", unsigned),
    RES_RQPN: ("rqpn", unsigned),
    RES_TYPE: ("type", unsigned),
    RES_STATE: ("state", unsigned),
    RES_PID: ("pid", unsigned),
    RES_KERN_NAME: ("kern", string),
    RES_PS: ("ps", unsigned),
    RES_SRC_ADDR: ("src", address),
    RES_DST_ADDR: ("dst", address),
    RES_MRLEN: ("mrlen", unsigned),
}


def qp_words(qp: dict[str, Any]) -> tuple[str, str]:
    """Type and state of a queue pair in the field's words."""
    kind, state = qp.get("type", -1), qp.get("state", -1)
    return QP_TYPES.get(kind, "type %d" % kind), QP_STATES[state] if 0 <= state < len(QP_STATES) else "state %d" % state
