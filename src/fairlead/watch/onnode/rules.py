"""What is not well, by two looks and what is remembered of earlier ones. Pure: every rule yields findings as dicts.

A finding: `code`, `verdict` (warn, fail, unknown), `part` (a port, a NIC, an owner), `message`, `evidence` ([where,
what stood there]), `remedy`, `data`. Numbers that judge come in `limits`, by the names of limits.toml.
"""

from __future__ import annotations

from fairlead.probe.readers.infiniband import SYS_IB
from fairlead.watch.onnode.owners import label
from fairlead.watch.onnode.rates import Growth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ACTIVE = "4: ACTIVE"
LINK_FILES = "/sys/class/net/"


def finding(
    code: str, verdict: str, part: str, message: str, evidence: list[list[str]], remedy: str, **data: Any
) -> dict[str, Any]:
    """One finding."""
    return {
        "code": code,
        "verdict": verdict,
        "part": part,
        "message": message,
        "evidence": evidence,
        "remedy": remedy,
        "data": data,
    }


def port_path(port: str, name: str) -> str:
    """The file of a port: mlx5_0/1, state -> /sys/class/infiniband/mlx5_0/ports/1/state."""
    device, _, number = port.rpartition("/")
    return SYS_IB + "/" + device + "/ports/" + number + "/" + name


def gbps(rate: Any) -> float | None:
    """`400 Gb/sec (4X NDR)` as a number; None where there is none."""
    try:
        return float(str(rate).split(" ", 1)[0])
    except ValueError:
        return None


class PortMemory:
    """What is remembered of each port and link: the best it was, its flaps, its error counters."""

    def __init__(self, limits: dict[str, float], counters: list[dict[str, Any]]) -> None:
        self.limits, self.counters = limits, counters
        self.best: dict[str, str] = {}
        """Port -> the highest rate it had."""
        self.was_active: dict[str, float] = {}
        """Port -> when it was last active."""
        self.was_up: dict[str, float] = {}
        """Network link -> when it was last up."""
        self.flaps: dict[str, Growth] = {}
        self.grown: dict[tuple[str, str], Growth] = {}

    def ports(self, at_s: float, ports: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """State and rate: a port that was up and is down; one that runs below what it ran at."""
        for name, port in sorted(ports.items()):
            state, rate = port.get("state"), port.get("rate")
            if isinstance(state, str) and state == ACTIVE:
                self.was_active[name] = at_s
                now, best = gbps(rate), gbps(self.best.get(name))
                if now is not None and (best is None or now >= best):
                    self.best[name] = str(rate)
                elif now is not None and best is not None and now < best:
                    yield finding(
                        "watch/link-slower", "fail", name, "runs at %s; it ran at %s" % (rate, self.best[name]),
                        [[port_path(name, "rate"), str(rate)]], "reseat or replace the cable, then: rdma link show",
                        value=now, was=best, unit="Gb/s",
                    )  # fmt: skip
            elif isinstance(state, str) and name in self.was_active:
                since = self.was_active[name]
                yield finding(
                    "watch/port-down", "fail", name, "is %s; it was active %.0f s ago" % (state, at_s - since),
                    [[port_path(name, "state"), state], [port_path(name, "phys_state"), str(port.get("phys_state"))]],
                    "dmesg | grep %s; check cable and switch port" % name.rpartition("/")[0],
                    down_s=round(at_s - since, 1),
                )  # fmt: skip
        for name in sorted(set(self.was_active) - set(ports)):
            yield finding(
                "watch/port-down", "fail", name, "is gone from the kernel's list; it was active %.0f s ago"
                % (at_s - self.was_active[name]), [[SYS_IB, "no " + name.rpartition("/")[0]]],
                "dmesg | tail; lspci -d 15b3:", down_s=round(at_s - self.was_active[name], 1),
            )  # fmt: skip

    def links(self, at_s: float, links: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A network link that was up and has no carrier, or was taken down. One that is gone is not told here: virtual
        functions come and go by their NIC (vf_windows), RDMA devices by `ports`.
        """
        for name, link in sorted(links.items()):
            state = link.get("operstate")
            if state == "up":
                self.was_up[name] = at_s
            elif name in self.was_up and state in ("down", "lowerlayerdown"):
                has_carrier_to_lose = link.get("is_admin_up", True)
                yield finding(
                    "watch/link-down", "fail" if has_carrier_to_lose else "warn", name,
                    "%s; it was up %.0f s ago" % (
                        "has no carrier" if has_carrier_to_lose else "was taken down", at_s - self.was_up[name]),
                    [[LINK_FILES + name + "/operstate", str(state)]],
                    "ip link show %s; ethtool %s" % (name, name), down_s=round(at_s - self.was_up[name], 1),
                )  # fmt: skip
        for name in set(self.was_up) - set(links):
            del self.was_up[name]

    def flap(self, at_s: float, up_s: float, name: str, times: int) -> None:
        """A port or link lost its carrier so many times; just after a boot that is nothing."""
        if times > 0 and up_s >= self.limits["boot_grace_s"]:
            self.flaps.setdefault(name, Growth(self.limits["flap_window_s"])).add(at_s, times)

    def flapping(self, at_s: float) -> Iterator[dict[str, Any]]:
        """Ports and links that came and went too often."""
        for name, window in sorted(self.flaps.items()):
            num = int(window.sum(at_s))
            if num >= self.limits["flaps"]:
                own = LINK_FILES + name + "/carrier_down_count"
                where = port_path(name, "counters/link_downed") if "/" in name else own
                yield finding(
                    "watch/flapping", "warn", name,
                    "lost its carrier %d times within %.0f h" % (num, window.length_s / 3600),
                    [[where, "+%d" % num]],
                    "check cable, transceiver and switch port: dmesg | grep -i 'link'", flaps=num,
                )  # fmt: skip

    def errors(self, at_s: float, name: str, grown: dict[str, int | None]) -> None:
        """How much the error counters of a port grew."""
        for rule in self.counters:
            growth = grown.get(rule["counter"])
            if growth is None and rule["counter"] not in grown:
                continue
            key = name, rule["counter"]
            window = self.grown.get(key)
            if window is None:
                window = self.grown[key] = Growth(rule["window_s"])
            window.add(at_s, growth or 0)

    def erring(self, at_s: float) -> Iterator[dict[str, Any]]:
        """Ports whose error counters grow faster than they may."""
        rules = {rule["counter"]: rule for rule in self.counters}
        for (name, counter), window in sorted(self.grown.items()):
            rule, num = rules[counter], window.sum(at_s)
            if num > rule["limit"]:
                where = port_path(name, "%s/%s" % (rule["where"], counter))
                yield finding(
                    "watch/counter-rate", rule["verdict"], name,
                    "%s grew by %d within %.0f s, more than %g" % (counter, num, rule["window_s"], rule["limit"]),
                    [[where, "+%d" % num]], "watch -d cat " + where, counter=counter, value=num, limit=rule["limit"],
                    window_s=rule["window_s"],
                )  # fmt: skip


def slow_path(
    nic: str, vf: str, share: float | None, bps: float, seconds: float, limits: dict[str, float]
) -> Iterator[dict[str, Any]]:
    """A NIC with a virtual function whose bytes take the synthetic way for longer than a servicing does.

    `seconds`: for how long the share has been below the limit.
    """
    if share is None or bps < limits["share_bytes_per_s"] or seconds < limits["slow_path_s"]:
        return
    if share < limits["vf_share"]:
        yield finding(
            "watch/slow-path", "warn", nic,
            "%.0f %% of its bytes took the virtual function %s, over %.0f s" % (100 * share, vf or "-", seconds),
            [["ethtool -S " + nic, "vf_rx_bytes and vf_tx_bytes: %.3f of all" % share]],
            "dmesg | grep 'Data path'; ip -d link show " + nic, share=round(share, 4), limit=limits["vf_share"],
        )  # fmt: skip


def vf_windows(
    at_s: float, log_now_s: float, windows: list[dict[str, Any]], limits: dict[str, float]
) -> Iterator[dict[str, Any]]:
    """Virtual functions that are gone; one that does not come back is a fault, one that is away is worth to know."""
    for window in windows:
        if "end_s" in window:
            continue
        away = max(0.0, log_now_s - window["start_s"])
        event = window.get("event")
        why = "; the platform announced %s" % event if event else "; no scheduled event explains it"
        yield finding(
            "watch/vf-gone", "fail" if away > limits["vf_return_s"] else "warn", window["nic"],
            "has had no virtual function for %.0f s%s" % (away, why),
            [["/dev/kmsg", "hv_netvsc %s: the VF went at %.3f" % (window["nic"], window["start_s"])]],
            "dmesg | grep hv_netvsc; drain the node if it does not come back", away_s=round(away, 1), event=event or "",
        )  # fmt: skip


def bytes_and_owners(
    judged: dict[str, dict[str, Any]], seconds: float, limits: dict[str, float]
) -> Iterator[dict[str, Any]]:
    """Ports that move bytes and have no owner, or none that may. `judged`: reconcile.Ledger.judge, with `bytes`."""
    for name, port in sorted(judged.items()):
        if port["state"] == "unowned" and port["strikes"] >= limits["unowned_windows"]:
            yield finding(
                "watch/bytes-without-owner", "fail", name,
                "moved %d bytes within %.0f s, and nobody held a queue pair or an open context on it"
                % (port["bytes"], seconds),
                [[port_path(name, "counters/port_xmit_data, port_rcv_data"), "+%d bytes" % port["bytes"]],
                 ["netlink: rdma resource show", "no owner"]],
                "ls -l /proc/*/fd 2>/dev/null | grep uverbs; rdma resource show qp", bytes=port["bytes"],
                seconds=round(seconds, 1), windows=port["strikes"],
            )  # fmt: skip
        if port["state"] == "not-allowed" and port["strikes"] >= limits["unowned_windows"]:
            who = ", ".join(sorted({label(owner) for owner in port["by"]})[:4])
            yield finding(
                "watch/owner-not-allowed", "fail", name,
                "moved %d bytes within %.0f s for %s, who may not" % (port["bytes"], seconds, who),
                [["netlink: rdma resource show", "pid %s" % owner.get("pid", "-")] for owner in port["by"][:4]],
                "rdma resource show qp; `allowed` in [watch] says who may", bytes=port["bytes"], who=who,
            )  # fmt: skip


def scheduled(events: Any) -> Iterator[dict[str, Any]]:
    """What the platform means to do to this machine."""
    for event in events if isinstance(events, list) else []:
        kind, status = str(event.get("EventType")), str(event.get("EventStatus"))
        is_ours = event.get("mine", True)
        whose = "" if is_ours else "; it says not which VM this is, so this may be another's"
        yield finding(
            "watch/scheduled-event", "warn" if is_ours else "unknown", str(event.get("EventId"))[:40],
            "the platform has a %s: %s, not before %s%s" % (kind, status, event.get("NotBefore") or "now", whose),
            [["http://169.254.169.254/metadata/scheduledevents", kind + " " + status]],
            "drain the node, or approve the event", event=kind, status=status,
        )  # fmt: skip


def blind(holes: dict[str, str], looks: dict[str, int], limits: dict[str, float]) -> Iterator[dict[str, Any]]:
    """What could not be read, at so many looks in a row."""
    for what, why in sorted(holes.items()):
        if looks.get(what, 0) >= limits["blind_looks"]:
            yield finding(
                "watch/blind", "unknown", what, "could not be read: " + why, [[what, why]],
                "run it as root; fairlead explain watch/blind", looks=looks[what],
            )  # fmt: skip


class Board:
    """Findings that stand, and what to tell of them: a new one, a worse or better one, one that is over."""

    def __init__(self) -> None:
        self.standing: dict[tuple[str, str, str], dict[str, Any]] = {}

    def update(self, wall_ns: int, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Records about what changed."""
        now = {(f["code"], f["part"], str(f["data"].get("counter", ""))): f for f in found}
        records = []
        for key, one in now.items():
            before = self.standing.get(key)
            one["since_ns"] = before["since_ns"] if before else wall_ns
            if before is None or before["verdict"] != one["verdict"]:
                records.append({"kind": "finding", "t": wall_ns, **one})
        for key, one in self.standing.items():
            if key not in now:
                seconds = round((wall_ns - one["since_ns"]) / 1e9, 1)
                records.append({"kind": "cleared", "t": wall_ns, "code": one["code"], "part": one["part"],
                                "after_s": seconds})  # fmt: skip
        self.standing = now
        return records
