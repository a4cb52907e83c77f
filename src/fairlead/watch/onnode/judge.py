"""The auditor's mind: a sample in, records for the audit and a picture of now out. No clock, no file, no socket.

    judge = Judge(settings)
    records = judge.step(sample)
    judge.now            # what `fairlead watch`, the endpoint and the text file show

A sample is what sample.py reads, or what a test replays; every part of it may be a hole (`{"unread": why}`).
"""

from __future__ import annotations

from fairlead.checks.datapath import matching
from fairlead.watch.onnode.owners import label
from fairlead.watch.onnode.path import VfWindows
from fairlead.watch.onnode.rates import delta, link_deltas, port_bytes, port_deltas, vf_share
from fairlead.watch.onnode.reconcile import Ledger, connections, holders, key_of, owner_of, talkers
from fairlead.watch.onnode.rules import (
    ACTIVE,
    Board,
    PortMemory,
    blind,
    bytes_and_owners,
    scheduled,
    slow_path,
    vf_windows,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINK_COUNTERS = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_errors", "tx_errors", "rx_dropped",
                 "tx_dropped", "carrier_downs")  # fmt: skip
LINK_RATES = (("rx_bps", "rx_bytes"), ("tx_bps", "tx_bytes"), ("rx_pps", "rx_packets"), ("tx_pps", "tx_packets"))
MAX_QPS = 64
"""Queue pairs named in one record; the rest is counted."""
MAX_SHOWN = 16
MAX_CONNECTIONS = 256
MAX_EVENTS = 64
A_DAY_S = 86_400.0


def is_hole(value: Any) -> bool:
    """Whether something could not be read."""
    return isinstance(value, dict) and "unread" in value


def part_of(sample: dict[str, Any], name: str) -> Any:
    """A part of a sample; empty where it is a hole."""
    value = sample.get(name)
    return {} if value is None or is_hole(value) else value


class Judge:
    """What is remembered between samples, all of it bounded."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.limits: dict[str, float] = settings["limits"]
        self.memory = PortMemory(self.limits, settings["counters"])
        self.ledger = Ledger(self.limits["owner_grace_s"])
        self.board = Board()
        self.paths = VfWindows()
        self.before: dict[str, Any] = {}
        self.events: dict[str, dict[str, Any]] = {}
        self.blind_looks: dict[str, int] = {}
        self.slow_since: dict[str, float] = {}
        self.held: dict[str, dict[str, Any]] = {}
        """device and owner -> what was recorded of it."""
        self.sums: dict[str, list[int]] = {}
        self.sums_since = 0.0
        self.log_s = -1.0
        """The kernel's log was recorded up to here, by its own clock."""
        self.now: dict[str, Any] = {}

    def remembered(self) -> dict[str, Any]:
        """What a later start in the same boot goes on from."""
        return {"best": self.memory.best, "was_active": self.memory.was_active, "log_s": self.log_s}

    def restore(self, said: Any) -> None:
        """Take it back; what has another shape is left out."""
        if isinstance(said, dict):
            for name, kind in (("best", str), ("was_active", float)):
                values = said.get(name)
                if isinstance(values, dict):
                    kept = {str(k): kind(v) for k, v in values.items() if isinstance(v, (str, float, int))}
                    getattr(self.memory, name).update(kept)
            if isinstance(said.get("log_s"), (int, float)):
                self.log_s = float(said["log_s"])

    def step(self, sample: dict[str, Any]) -> list[dict[str, Any]]:
        """One sample; returns what is to be recorded."""
        wall, at_s = sample["wall_ns"], sample["boot_s"]
        records, seconds = self._clocks(sample), at_s - self.before.get("boot_s", at_s)
        records += self._log(sample)
        owners = part_of(sample, "owners")
        records += self._objects(sample, owners)
        ports = self._ports(sample, seconds)
        links = self._links(sample, seconds)
        judged = self._reconcile(sample, ports, seconds, owners)
        holes = self._holes(sample)
        found = [
            *(self.memory.ports(at_s, part_of(sample, "ports")) if "ports" not in holes else ()),
            *(self.memory.links(at_s, part_of(sample, "links")) if "links" not in holes else ()),
            *self.memory.flapping(at_s),
            *self.memory.erring(at_s),
            *vf_windows(at_s, sample.get("log_s", at_s), self.paths.windows, self.limits),
            *self._slow(at_s, links, seconds),
            *bytes_and_owners(judged, seconds, self.limits),
            *scheduled(sample.get("events")),
            *blind(holes, self.blind_looks, self.limits),
        ]
        records += self.board.update(wall, found)
        records += self._sums(wall, at_s, ports)
        self.now = self._picture(sample, seconds, ports, links, judged)
        self.before = sample
        return records

    # ---- clocks and what the kernel said -------------------------------------------------------------------------

    def _clocks(self, sample: dict[str, Any]) -> list[dict[str, Any]]:
        if not self.before:
            return []
        seconds = sample["boot_s"] - self.before["boot_s"]
        jump_s = (sample["wall_ns"] - self.before["wall_ns"]) / 1e9 - seconds
        records = []
        if abs(jump_s) > self.limits["clock_jump_s"]:
            records.append({"kind": "clock", "t": sample["wall_ns"], "jump_s": round(jump_s, 3)})
        if seconds > 3 * self.settings["period_s"]:  # the machine stood still, or was too busy
            records.append({"kind": "late", "t": sample["wall_ns"], "seconds": round(seconds, 3)})
        return records

    def _log(self, sample: dict[str, Any]) -> list[dict[str, Any]]:
        """Windows without a virtual function, with the scheduled event that explains each."""
        at_s, wall = sample["boot_s"], sample["wall_ns"]
        log_s = sample.get("log_s", at_s)
        said = sample.get("events")
        for event in said if isinstance(said, list) else []:
            key = str(event.get("EventId"))[:64]
            known = self.events.setdefault(key, {"first_s": log_s, "id": key, "type": str(event.get("EventType"))[:32]})
            known["last_s"] = log_s
        for key in [k for k, e in self.events.items() if e["last_s"] < log_s - A_DAY_S][:MAX_EVENTS]:
            del self.events[key]
        while len(self.events) > MAX_EVENTS:
            del self.events[next(iter(self.events))]
        records = []
        lines = sample.get("kernel")
        told = [(line_s, self.paths.take(line_s, text)) for line_s, text in lines] if isinstance(lines, list) else []
        told += [(log_s, window) for window in self.paths.settled(log_s)]
        known_events = [(event["first_s"], event["last_s"], event) for event in self.events.values()]
        for line_s, window in told:
            if window is None:
                continue
            start_s, end_s = window["start_s"], window.get("end_s", window["start_s"])
            event = matching(start_s, end_s, known_events, self.limits["event_match_s"])
            if event:
                window["event"] = "%s %s" % (event["type"], event["id"])
            if line_s <= self.log_s:
                continue  # an earlier start in this boot recorded it
            record = {"kind": "vf-gone", "t": wall, **window}
            if "end_s" in window:
                record.update(kind="vf-back", seconds=round(window["end_s"] - window["start_s"], 3))
            records.append(record)
        self.log_s = max([self.log_s, *(line_s for line_s, _ in lines)]) if isinstance(lines, list) else self.log_s
        return records

    # ---- objects ---------------------------------------------------------------------------------------------------

    def _objects(self, sample: dict[str, Any], owners: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
        """Who came and went, with which queue pairs to whom."""
        qps, wall = sample.get("qps"), sample["wall_ns"]
        if not isinstance(qps, list):
            return []
        held: dict[str, dict[str, Any]] = {}
        for device, thing in [(t["dev"], t) for name in ("ctxs", "qps") for t in part_of(sample, name) or []]:
            key = device + " " + key_of(thing)
            row = held.setdefault(key, {"dev": device, "key": key_of(thing), "qps": set(), "peers": set()})
            if "lqpn" in thing:
                row["qps"].add((thing["lqpn"], thing.get("rqpn", 0), thing["type"], thing["state"]))
        for connection in part_of(sample, "cm_ids") or []:
            its = held.get(connection["dev"] + " " + key_of(connection))
            if its is not None and connection.get("dst"):
                its["peers"].add(connection["dst"])
        regions = part_of(sample, "mrs")
        records = []
        for key, row in sorted(held.items()):
            old = self.held.get(key)
            owner = owner_of(row["key"], owners)
            row["owner"] = owner
            if old is None:
                num, size = regions.get(key, (0, 0)) if isinstance(regions, dict) else (0, 0)
                records.append({"kind": "owner", "t": wall, "dev": row["dev"], "owner": owner, "mrs": num,
                                "mr_bytes": size, "peers": sorted(row["peers"])[:MAX_SHOWN]})  # fmt: skip
            elif row["peers"] - old["peers"]:
                records.append({"kind": "peers", "t": wall, "dev": row["dev"], "owner": label(owner),
                                "pid": owner.get("pid", 0), "num": len(row["peers"]),
                                "new": sorted(row["peers"] - old["peers"])[:MAX_SHOWN]})  # fmt: skip
            new = sorted(row["qps"] - (old["qps"] if old else set()))
            gone = len(old["qps"] - row["qps"]) if old else 0
            if new or gone:
                records.append({"kind": "qps", "t": wall, "dev": row["dev"], "owner": label(owner),
                                "pid": owner.get("pid", 0), "num": len(row["qps"]), "gone": gone,
                                "new": [list(qp) for qp in new[:MAX_QPS]], "num_new": len(new)})  # fmt: skip
        for key in sorted(set(self.held) - set(held)):
            row = self.held[key]
            records.append({"kind": "owner-end", "t": wall, "dev": row["dev"], "owner": label(row["owner"]),
                            "pid": row["owner"].get("pid", 0)})  # fmt: skip
        self.held = held
        return records

    # ---- rates -------------------------------------------------------------------------------------------------------

    def _ports(self, sample: dict[str, Any], seconds: float) -> dict[str, dict[str, Any]]:
        at_s, before, found = sample["boot_s"], part_of(self.before, "ports"), {}
        for name, port in part_of(sample, "ports").items():
            old = before.get(name)
            grown = port_deltas(old, port) if old else {}
            received, sent = port_bytes(grown)
            down = grown.get("link_downed")
            was, now = (old or {}).get("state"), port.get("state")
            if down is None:  # the counter is not there, or stands at its end
                down = int(was == ACTIVE and isinstance(now, str) and now != ACTIVE)
            self.memory.flap(at_s, at_s, name, down)
            self.memory.errors(at_s, name, grown)
            found[name] = {"grown": grown, "received": received, "sent": sent,
                           "rx_bps": _rate(received, seconds), "tx_bps": _rate(sent, seconds),
                           "rx_pps": _rate(grown.get("port_rcv_packets"), seconds),
                           "tx_pps": _rate(grown.get("port_xmit_packets"), seconds)}  # fmt: skip
        return found

    def _links(self, sample: dict[str, Any], seconds: float) -> dict[str, dict[str, Any]]:
        before, found = part_of(self.before, "links"), {}
        vf_before, vf_now = part_of(self.before, "vf"), part_of(sample, "vf")
        uppers: dict[str, str] = {}
        for name, link in part_of(sample, "links").items():
            old = before.get(name)
            grown = link_deltas(old, link, LINK_COUNTERS) if old else {}
            if grown.get("carrier_downs"):
                self.memory.flap(sample["boot_s"], sample["boot_s"], name, grown["carrier_downs"] or 0)
            row: dict[str, Any] = {key: _rate(grown.get(long), seconds) for key, long in LINK_RATES}
            if link.get("master"):
                uppers[link["master"]] = name
            numbers, past = vf_now.get(name), vf_before.get(name)
            if numbers and past:
                took = {key: delta(past.get(key), value) for key, value in numbers.items()}
                row["vf_share"] = vf_share(grown, took)
            found[name] = row
        for name, vf in uppers.items():
            if name in found and "vf_share" in found[name]:
                found[name]["vf"] = vf
        return found

    def _slow(self, at_s: float, links: dict[str, dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for name, row in links.items():
            share = row.get("vf_share")
            bps = (row["rx_bps"] or 0.0) + (row["tx_bps"] or 0.0)
            if share is None or share >= self.limits["vf_share"] or bps < self.limits["share_bytes_per_s"]:
                if share is not None and share >= self.limits["vf_share"]:
                    self.slow_since.pop(name, None)
                continue
            since = self.slow_since.setdefault(name, at_s - seconds)
            vf = str(row.get("vf", ""))
            found += slow_path(name, vf, share, bps, at_s - since, self.limits)
        for name in set(self.slow_since) - set(links):
            del self.slow_since[name]
        return found

    def _reconcile(
        self,
        sample: dict[str, Any],
        ports: dict[str, dict[str, Any]],
        seconds: float,
        owners: dict[int, dict[str, Any]],
    ) -> dict[str, dict[str, Any]]:
        held, at_s = holders(sample), sample["boot_s"]
        if held is not None:
            self.ledger.see(at_s, held)
        if held is None or not self.before:
            return {}
        judged = {}
        for name, port in ports.items():
            known = [part for part in (port["received"], port["sent"]) if part is not None]
            num = sum(known) if known else None
            judged[name] = self.ledger.judge(
                name, num, seconds, at_s - seconds, owners, allowed=self.settings["allowed"],
                background=self.limits["background_bytes_per_s"],
            )  # fmt: skip
            judged[name]["bytes"] = num or 0
        return judged

    def suspects(self, sample: dict[str, Any]) -> list[str]:
        """Ports that seem to move bytes for nobody: worth the cost of a look at who has which file open. Pure."""
        held, before = holders(sample), part_of(self.before, "ports")
        seconds = sample["boot_s"] - self.before.get("boot_s", sample["boot_s"])
        if held is None or seconds <= 0:
            return []
        since, found = self.before["boot_s"] - self.ledger.grace_s, []
        for name, port in part_of(sample, "ports").items():
            parts = port_bytes(port_deltas(before[name], port)) if name in before else (None, None)
            num = sum(part for part in parts if part is not None)
            is_held = held.get(name) or held.get(name.rpartition("/")[0]) or self.ledger.holders_of(name, since)
            if num > self.limits["background_bytes_per_s"] * seconds and not is_held:
                found.append(name)
        return found

    # ---- what is told ----------------------------------------------------------------------------------------------

    def _holes(self, sample: dict[str, Any]) -> dict[str, str]:
        """Parts that should be there and could not be read. A kernel without RDMA, and a machine without Azure's
        service, have nothing to read.
        """
        holes = {name: str(sample[name]["unread"]) for name in ("ports", "links", "qps", "kernel", "events", "audit")
                 if is_hole(sample.get(name)) and not sample[name].get("expected")}  # fmt: skip
        for name, port in part_of(sample, "ports").items():
            for key in ("state", "counters"):
                if is_hole(port.get(key)) and not port[key].get("expected"):
                    holes[name + " " + key] = str(port[key]["unread"])
        self.blind_looks = {name: self.blind_looks.get(name, 0) + 1 for name in holes}
        return holes

    def _sums(self, wall: int, at_s: float, ports: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """The bytes of every port, once in `record_rates_s`."""
        for name, port in ports.items():
            row = self.sums.setdefault(name, [0, 0])
            row[0] += port["received"] or 0
            row[1] += port["sent"] or 0
        if not self.sums_since:
            self.sums_since = at_s
        if at_s - self.sums_since < self.limits["record_rates_s"] or not self.sums:
            return []
        record = {"kind": "bytes", "t": wall, "seconds": round(at_s - self.sums_since, 3), "ports": self.sums,
                  "owners": [self._held_by(key) for key in sorted(self.held)[:MAX_QPS]]}  # fmt: skip
        self.sums, self.sums_since = {}, at_s
        return [record]

    def _held_by(self, key: str) -> list[Any]:
        """[device, owner, process, queue pairs, memory regions, their bytes]"""
        row, regions = self.held[key], part_of(self.before, "mrs")
        num, size = regions.get(key, (0, 0)) if isinstance(regions, dict) else (0, 0)
        return [row["dev"], label(row["owner"]), row["owner"].get("pid", 0), len(row["qps"]), num, size]

    def _picture(
        self, sample: dict[str, Any], seconds: float, ports: dict[str, dict[str, Any]],
        links: dict[str, dict[str, Any]], judged: dict[str, dict[str, Any]],
    ) -> dict[str, Any]:  # fmt: skip
        """Now, for those who look."""
        shown_ports = {}
        for name, row in ports.items():
            port, owners = sample["ports"][name], judged.get(name, {}).get("by", [])
            shown_ports[name] = {
                **{key: port[key] for key in ("state", "rate", "link_layer") if isinstance(port.get(key), str)},
                **{key: row[key] for key in ("rx_bps", "tx_bps", "rx_pps", "tx_pps")},
                "owners": sorted({label(owner) for owner in owners})[:MAX_SHOWN],
                "use": judged.get(name, {}).get("state", "unknown"),
            }
        shown_links = {}
        for name, row in links.items():
            link = sample["links"][name]
            shown_links[name] = {"operstate": link.get("operstate", ""), **row,
                                 **({"path": self.paths.way[name]} if name in self.paths.way else {})}  # fmt: skip
        moving = {n: {"bps": (r["rx_bps"] or 0) + (r["tx_bps"] or 0), "by": judged.get(n, {}).get("by", [])}
                  for n, r in ports.items()}  # fmt: skip
        qps = sample.get("qps")
        return {
            "t": sample["wall_ns"],
            "seconds": round(seconds, 3),
            "ports": shown_ports,
            "links": shown_links,
            "talkers": talkers(moving)[:MAX_SHOWN],
            "num_qps": len(qps) if isinstance(qps, list) else None,
            "connections": connections(sample.get("cm_ids"), part_of(sample, "owners"), self.settings["allowed"])[
                :MAX_CONNECTIONS
            ],
            "windows": self.paths.windows[-MAX_SHOWN:],
            "findings": list(self.board.standing.values()),
        }


def _rate(num: int | None, seconds: float) -> float | None:
    return None if num is None or seconds <= 0 else round(num / seconds, 1)
