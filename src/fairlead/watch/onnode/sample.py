"""One look at the machine: files of /sys, /proc and /dev/kmsg, netlink, ethtool. Decides nothing.

Every part of a sample that cannot be read is a hole with its reason; `expected` marks one that means that there is
nothing to read (a kernel without RDMA). Netlink and ethtool speak of the live machine alone: a captured tree has none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

from fairlead.probe.readers.infiniband import COUNTERS, SYS_IB, SYS_VERBS
from fairlead.probe.readers.tree import Absent, Hole, Tree, hole, safe_name
from fairlead.watch.onnode.ethtool import LinkStatistics
from fairlead.watch.onnode.links import ALL_LINKS, NETLINK_ROUTE, RTM_GETLINK, links_of
from fairlead.watch.onnode.owners import Owners, openers
from fairlead.watch.onnode.rdma import COMMANDS, NETLINK_RDMA, NLDEV, devices, objects, qp_words, request
from fairlead.watch.onnode.wire import Asked, Garbled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

DATA = (*COUNTERS, "port_rcv_packets", "port_xmit_packets")
"""Counters of a port that are read: each file can cost a firmware command, so no more than are used."""
NETVSC = "hv_netvsc"
MAX_PORTS, MAX_QPS_READ, MAX_KERNEL_LINES = 256, 200_000, 1000
KMSG = "/dev/kmsg"


class Machine:
    """What stays open between looks: sockets, the kernel log, who owns what."""

    def __init__(self, tree: Tree, hw: list[str]) -> None:
        """`hw` names the hw_counters that a rule asks for."""
        self.tree, self.hw = tree, hw
        self.owners = Owners(tree)
        self.route: Asked | None = None
        self.rdma: Asked | None = None
        self.statistics: LinkStatistics | None = None
        self.drivers: dict[str, str] = {}
        self.shapes: dict[str, dict[str, Any]] = {}
        self.netdevs: dict[str, list[str]] = {}
        self.indexes: dict[str, int] = {}
        self.regions: Any = {}
        self.num_looks = 0
        self.glanced: dict[str, set[int]] = {}
        self.log = KernelLog(tree)

    def look(self, *, regions_every: int = 6) -> dict[str, Any]:
        """A sample. Never raises for what the machine holds or lacks."""
        sample: dict[str, Any] = {
            "wall_ns": time.time_ns(),
            "boot_s": time.clock_gettime(time.CLOCK_BOOTTIME),
            "log_s": time.clock_gettime(time.CLOCK_MONOTONIC),
        }
        sample["ports"] = read_part(self._ports)
        sample["links"] = read_part(self._links, sample["ports"])
        sample["vf"] = read_part(self._vf, sample["links"])
        self._objects(sample, is_turn=self.num_looks % regions_every == 0)
        if not self.tree.live:
            for name in ("links", "qps", "cm_ids", "ctxs", "mrs"):
                if "unread" in sample[name]:
                    sample[name]["expected"] = "yes"
        sample["kernel"] = read_part(self.log.news)
        if isinstance(sample["kernel"], dict) and NETVSC not in self.drivers.values():
            sample["kernel"]["expected"] = "yes"  # only Hyper-V's NIC tells its path there
        sample["glanced"], self.glanced = self.glanced, {}
        pids = {thing["pid"] for name in ("qps", "ctxs") if isinstance(sample[name], list) for thing in sample[name]
                if "pid" in thing}  # fmt: skip
        pids |= {pid for found in sample["glanced"].values() for pid in found}
        sample["owners"] = self.owners.look(pids)
        self.num_looks += 1
        return sample

    def close(self) -> None:
        """Let go of what is open."""
        for one in (self.route, self.rdma, self.statistics):
            if one is not None:
                one.close()
        self.log.close()

    def glance(self) -> None:
        """Only who has which device open: short-lived programs are seen between two looks."""
        if self.rdma is None or not self.indexes:
            return
        with contextlib.suppress(OSError, Garbled):
            found: dict[str, set[int]] = {}
            for device, index in self.indexes.items():
                for context in objects("ctx", self.rdma.dump(NLDEV + COMMANDS["ctx"], request(index))):
                    if "pid" in context:
                        found.setdefault(device, set()).add(context["pid"])
            self.owners.look({pid for pids in found.values() for pid in pids} | set(self.owners.cached))
            for device, pids in found.items():
                self.glanced.setdefault(device, set()).update(pids)

    def look_closer(self, sample: dict[str, Any]) -> None:
        """Who holds device files open: costs a walk over /proc, so only where bytes seem to be nobody's."""
        names = {}
        with contextlib.suppress(Hole):
            for name in self.tree.optional_names(SYS_VERBS, "uverbs"):
                device = self.tree.attr(SYS_VERBS + "/" + name + "/ibdev")
                if isinstance(device, str):
                    names[name] = device
        with contextlib.suppress(Hole):
            sample["openers"] = openers(self.tree, names)
            sample["owners"].update(self.owners.look(set(sample["openers"]) | set(sample["owners"])))

    # ---- ports -------------------------------------------------------------------------------------------------------

    def _ports(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for device in self.tree.optional_names(SYS_IB):
            base = SYS_IB + "/" + device
            guid = self.tree.attr(base + "/node_guid")
            for number in self.tree.names(base + "/ports"):
                if len(found) >= MAX_PORTS:
                    return found
                found[safe_name(device) + "/" + safe_name(number)] = self._port(base + "/ports/" + number, guid)
        return found

    def _port(self, base: str, guid: Any) -> dict[str, Any]:
        tree = self.tree
        port: dict[str, Any] = {key: tree.attr(base + "/" + key) for key in ("state", "phys_state", "rate")}
        shape = self.shapes.get(base)
        if shape is None or shape["guid"] != guid or not isinstance(shape["counters"], list):
            shape = self.shapes[base] = self._shape(base, guid)
        port["guid"], port["link_layer"] = guid, shape["link_layer"]
        for key, folder in (("counters", "counters"), ("hw", "hw_counters")):
            names = shape[key]
            port[key] = names if isinstance(names, dict) else {
                name: tree.number(base + "/" + folder + "/" + name) for name in names
            }  # fmt: skip
        return port

    def _shape(self, base: str, guid: Any) -> dict[str, Any]:
        """What does not change while it is the same device: which counters a port has, and its link layer."""
        tree = self.tree
        counters = read_part(tree.names, base + "/counters")
        hw = read_part(tree.optional_names, base + "/hw_counters") if self.hw else []
        return {
            "guid": guid,
            "link_layer": tree.attr(base + "/link_layer"),
            "counters": [n for n in counters if n in DATA] if isinstance(counters, list) else counters,
            "hw": [n for n in hw if n in self.hw] if isinstance(hw, list) else {},
        }

    # ---- links -------------------------------------------------------------------------------------------------------

    def _links(self, ports: Any) -> dict[str, Any]:
        if not self.tree.live:
            raise Absent("a captured tree has no netlink", "netlink: link show")
        if self.route is None:
            self.route = Asked(NETLINK_ROUTE)
        return links_of(self.route.dump(RTM_GETLINK, ALL_LINKS), self._netdevs(ports))

    def _netdevs(self, ports: Any) -> frozenset[str]:
        """The links of RDMA devices, whatever kind of link they are."""
        found: set[str] = set()
        for device in {name.rpartition("/")[0] for name in ports} if "unread" not in ports else ():
            if device not in self.netdevs:
                names = read_part(self.tree.optional_names, SYS_IB + "/" + device + "/device/net")
                one = self.tree.attr(SYS_IB + "/" + device + "/ports/1/gid_attrs/ndevs/0")
                self.netdevs[device] = [
                    *(names if isinstance(names, list) else []),
                    *([one] if isinstance(one, str) else []),
                ]
            found.update(self.netdevs[device])
        return frozenset(found)

    def _vf(self, links: Any) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        if "unread" in links:
            return found
        for name in links:
            if name not in self.drivers:
                driver = self.tree.linked_name("/sys/class/net/" + name + "/device/driver")
                self.drivers[name] = driver if isinstance(driver, str) else ""
            if self.drivers[name] == NETVSC:
                if self.statistics is None:
                    self.statistics = LinkStatistics()
                with contextlib.suppress(OSError):
                    found[name] = self.statistics.read(name)
        for name in set(self.drivers) - set(links):
            del self.drivers[name]
        return found

    # ---- RDMA objects ------------------------------------------------------------------------------------------------

    def _objects(self, sample: dict[str, Any], *, is_turn: bool) -> None:
        """`qps`, `cm_ids`, `ctxs` as lists, `mrs` as {device and owner: [number, bytes]}; memory regions take turns."""
        try:
            self._connect()
        except Hole as missing:
            why = dict(hole(missing.why, missing.source))
            if isinstance(missing, Absent) and not sample["ports"]:
                why["expected"] = "yes"
            sample.update(qps=why, cm_ids=why, ctxs=why, mrs=why)
            return
        for name, kind in (("qps", "qp"), ("cm_ids", "cm_id"), ("ctxs", "ctx")):
            sample[name] = read_part(self._list, kind)
        if is_turn:
            self.regions = read_part(self._regions)
        sample["mrs"] = self.regions

    def _connect(self) -> None:
        where = "netlink: rdma"
        if not self.tree.live:
            raise Absent("a captured tree has no netlink", where)
        try:
            if self.rdma is None:
                self.rdma = Asked(NETLINK_RDMA)
            found = devices(self.rdma.dump(NLDEV + COMMANDS["dev"], request(None)))
        except OSError as error:
            kind = Absent if error.errno == errno.EPROTONOSUPPORT else Hole
            self._hang_up()
            raise kind(error.strerror or str(error), where) from None
        except Garbled as error:
            self._hang_up()
            raise Hole(str(error), where) from None
        self.indexes = {one["name"]: one["index"] for one in found if "name" in one and "index" in one}

    def _hang_up(self) -> None:
        if self.rdma is not None:
            self.rdma.close()
            self.rdma = None
        self.indexes = {}

    def _list(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for device, index in self.indexes.items():
            for one in self._dumped(kind, index):
                if len(found) >= MAX_QPS_READ:
                    raise Hole("more than %d objects" % MAX_QPS_READ, "netlink: rdma resource show " + kind)
                one["dev"] = device
                if kind == "qp":
                    one["type"], one["state"] = qp_words(one)
                found.append(one)
        return found

    def _dumped(self, kind: str, index: int) -> Any:
        assert self.rdma is not None
        return objects(kind, self.rdma.dump(NLDEV + COMMANDS[kind], request(index)))

    def _regions(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for device, index in self.indexes.items():
            for one in self._dumped("mr", index):
                who = str(one["pid"]) if "pid" in one else "kernel:" + one["kern"] if one.get("kern") else "?"
                row = found.setdefault(device + " " + who, [0, 0])
                row[0] += 1
                row[1] += one.get("mrlen", 0)
        return found


class KernelLog:
    """News of the kernel's log: every record once. Only the kernel's own words (facility 0) count."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.handle = -1
        self.is_read = False

    def news(self) -> list[tuple[float, str]]:
        """(seconds of the log's clock, text) of what came since the last time; of a captured tree, all of it once."""
        if not self.tree.live:
            records = [] if self.is_read else self.tree.read_bytes(KMSG, 8 << 20).split(b"\n")
        else:
            records = self._records()
        self.is_read = True
        return [line for line in map(kernel_words, records) if line is not None]

    def close(self) -> None:
        """Let go of the log."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def _records(self) -> list[bytes]:
        found: list[bytes] = []
        if self.handle < 0:
            try:
                self.handle = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                raise self.tree.failed(error, KMSG) from None
        most = MAX_KERNEL_LINES if self.is_read else 1 << 20  # a flood is taken in turns; the first time, all of it
        with contextlib.suppress(BlockingIOError):
            while len(found) < most:
                try:
                    record = os.read(self.handle, 8192)
                except BrokenPipeError:
                    continue  # overwritten while we read; the next read goes on
                except OSError as error:
                    if error.errno == errno.EAGAIN:
                        break
                    raise self.tree.failed(error, KMSG) from None
                if NETVSC.encode() in record:
                    found.append(record)
        return found


def kernel_words(record: bytes) -> tuple[float, str] | None:
    """A record of /dev/kmsg such as `6,339,5140900,-;NET: ...`; None for a program's words, or for none.

    linux Documentation/ABI/testing/dev-kmsg.
    """
    head, mark, text = record.partition(b";")
    fields = head.split(b",")
    if not mark or len(fields) < 3 or not fields[0].isdigit() or not fields[2].isdigit() or int(fields[0]) >> 3:
        return None
    return int(fields[2]) / 1e6, text.split(b"\n")[0][:400].decode("utf-8", "backslashreplace")


def read_part(read: Callable[..., Any], *args: Any) -> Any:
    """What a reading function returns, or the hole it ran into."""
    try:
        return read(*args)
    except Hole as missing:
        return hole(missing.why, missing.source)
    except OSError as error:
        return hole(error.strerror or str(error))
    except Garbled as error:
        return hole("answers no netlink: %s" % error)
