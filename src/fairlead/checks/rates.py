"""Two readings of a node held side by side: what grew in between. Pure.

The window is measured by the node's own uptime, so a clock that jumps changes nothing; a node that was restarted in
between has no window. A counter that stands at the end of its register, that went backwards, or whose device is
another, tells nothing: unknown, never a pass.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple

from fairlead.checks.expect import Expect
from fairlead.checks.hcas import keys_of, ports_of
from fairlead.checks.holes import unread
from fairlead.checks.node import Node
from fairlead.checks.rules.accel import synthetic
from fairlead.records.facts import Facts, NodeFacts, Unread
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict

WRAP = 1 << 32
LEAST_BITS = 10_000_000_000
"""Received before an error rate per bit says anything."""
MAX_BER = 1e-7
LEAST_BYTES = 10_000_000
"""Moved by a NIC before the share of its virtual function says anything."""


class Rule(NamedTuple):
    """One line of rates.toml."""

    counter: str
    at: Verdict
    limit: float
    per_s: float
    means: str
    source: str
    top: int = 0


@functools.cache
def rate_rules() -> tuple[Rule, ...]:
    """Every rule about a counter."""
    data = tomllib.loads(resources.files("fairlead.checks").joinpath("rates.toml").read_text("utf-8"))
    return tuple(Rule(**{**row, "at": Verdict(row["at"])}) for row in data["rule"])


class Pair:
    """A node at two times. Raises Unread where there is no window between them."""

    def __init__(self, before: NodeFacts, after: NodeFacts, expect: Expect) -> None:
        self.before, self.after = Node(Facts(before), expect), Node(Facts(after), expect)
        boots = [n.get("host.identity.boot_id") for n in (self.before, self.after)]
        if boots[0] != boots[1]:
            raise Unread("host.identity.boot_id", "the node was restarted between the readings")
        self.window_s = float(self.after.get("host.os.uptime_s")) - float(self.before.get("host.os.uptime_s"))
        if self.window_s <= 0:
            raise Unread("host.os.uptime_s", "the second reading is not later than the first")

    def same_device(self, device: str) -> None:
        """Raises Unread where another device has the name now."""
        guids = [n.get("ib.devices", device, "node_guid") for n in (self.before, self.after)]
        if guids[0] != guids[1]:
            raise Unread(f"ib.devices.{device}", "another device has this name now")

    def grown(self, path: str, *keys: str, top: int = 0) -> int:
        """How much a counter grew. Raises Unread where the two values do not tell."""
        old, new = (n.get(path, *keys) for n in (self.before, self.after))
        name, source = ".".join(keys[-1:]), self.after.facts.source((*path.split("."), *keys))
        if not isinstance(old, int) or not isinstance(new, int) or isinstance(old, bool) or isinstance(new, bool):
            raise Unread(name, "is not a number", source)
        if top and top in (old, new):
            raise Unread(name, f"stands at {top}, the end of its register", source)
        if new >= old:
            return new - old
        if not top and old > WRAP // 2 and old < WRAP and new < WRAP // 2:
            return new - old + WRAP
        raise Unread(name, f"went backwards, from {old} to {new}: it was reset", source)


def judge_rates(before: NodeFacts, after: NodeFacts, expect: Expect) -> list[Finding]:
    """What two readings of one node tell beside each of them."""
    node = Subject(kind="node", nodes=(after.node,))
    try:
        pair = Pair(before, after, expect)
    except Unread as hole:
        return [unread("ib/counter-rates", node, hole)]
    found: list[Finding] = []
    try:
        ports = ports_of(pair.after)
    except Unread as hole:
        found.append(unread("ib/counter-rates", node, hole))
        ports = []
    for port in ports if expect.get("hca_ports") != 0 else []:
        found += [*_counters(pair, port), *_bits(pair, port)]
    return [*_folded(found, after.node), *_reads(pair), *_shares(pair)]


def _counters(pair: Pair, port: str) -> Iterator[Finding]:
    """Each rule on one port; what is well is one finding."""
    device, _, number = keys_of(port)
    told: dict[str, Finding] = {}
    for rule in rate_rules():
        path = (device, "ports", number, "counters", rule.counter)
        try:
            pair.same_device(device)
            count = pair.grown("ib.devices", *path, top=rule.top)
        except Unread as hole:
            told.setdefault(rule.counter, unread("ib/counter-rates", _port(pair, port), hole))
            continue
        if count > rule.limit * max(1.0, pair.window_s / rule.per_s) and rule.counter not in told:
            told[rule.counter] = _told(pair, "ib/counter-rates", port, rule, count)
    yield from told.values() if told else [_well(pair, "ib/counter-rates", port, "no counter grew beyond its limit")]


def _told(pair: Pair, code: str, port: str, rule: Rule, count: int) -> Finding:
    device, _, number = keys_of(port)
    source = f"/sys/class/infiniband/{device}/ports/{number}/counters/{rule.counter}"
    return Finding(
        code=code,
        verdict=rule.at,
        subject=_port(pair, port),
        message=f"{rule.means}: {rule.counter} grew by {count} in {pair.window_s:.1f} s",
        evidence=(Evidence(source, f"+{count} in {pair.window_s:.1f} s"),),
        remedy=f"drain {pair.after.facts.node}; have cable and port {port} looked at",
        data={"value": count, "window_s": round(pair.window_s, 3), "limit": rule.limit, "per_s": rule.per_s,
              "limit_source": rule.source},
    )  # fmt: skip


def _bits(pair: Pair, port: str) -> Iterator[Finding]:
    """Symbol errors against the bits received: port_rcv_data counts words of 32 bits."""
    device, _, number = keys_of(port)
    base = (device, "ports", number, "counters")
    try:
        errors = pair.grown("ib.devices", *base, "symbol_error", top=65535)
        bits = 32 * pair.grown("ib.devices", *base, "port_rcv_data")
    except Unread as hole:
        yield unread("ib/symbol-errors", _port(pair, port), hole)
        return
    if bits < LEAST_BITS:
        said = f"only {bits:.1e} bits in {pair.window_s:.1f} s, too few to tell"
        yield Finding(code="ib/symbol-errors", verdict=Verdict.SKIP, subject=_port(pair, port), message=said)
    elif errors / bits > MAX_BER:
        yield Finding(
            code="ib/symbol-errors",
            verdict=Verdict.WARN,
            subject=_port(pair, port),
            message=f"{errors} symbol errors in {bits:.1e} bits ({errors / bits:.1e})",
            evidence=(Evidence(f"/sys/class/infiniband/{device}/ports/{number}/counters/symbol_error", f"+{errors}"),),
            remedy=f"have the cable of {port} cleaned or replaced",
            data={"value": errors / bits, "limit": MAX_BER},
        )
    else:
        yield _well(pair, "ib/symbol-errors", port, f"{errors} symbol errors in {bits:.1e} bits")


def _reads(pair: Pair) -> list[Finding]:
    """Reading counters makes the kernel say nothing: some firmware refuses, and says so each time."""
    node = Subject(kind="node", nodes=(pair.after.facts.node,))
    try:
        since, lines = pair.before.get("host.os.uptime_s"), pair.after.get("kernel_log.lines")
    except Unread as hole:
        return [unread("ib/counter-reads", node, hole)] if pair.after.peek("ib.devices") else []
    new = [text for seconds, _, text in lines if seconds >= since and "ACCESS_REG" in text and "failed" in text]
    if not new:
        said = "reading counters left no message"
        return [Finding(code="ib/counter-reads", verdict=Verdict.PASS, subject=node, message=said)]
    return [
        Finding(
            code="ib/counter-reads",
            verdict=Verdict.WARN,
            subject=node,
            message=f"{len(new)} messages of refused register reads since the first reading",
            evidence=(Evidence(pair.after.facts.source(("kernel_log",)), new[-1]),),
            remedy="read the counters less often, or update the HCA's firmware",
            data={"value": len(new), "window_s": round(pair.window_s, 3)},
        )
    ]


def _shares(pair: Pair) -> list[Finding]:
    """Of the bytes that each synthetic NIC moved in the window, how many went by its virtual function."""
    found = []
    for nic, hole in synthetic(pair.after).items() if pair.after.peek("net.links") is not None else ():
        subject = Subject(kind="device", nodes=(pair.after.facts.node,), name=nic)
        if hole is not None:
            continue
        try:
            moved = sum(pair.grown("accelnet.nics", nic, f"{way}_bytes") for way in ("tx", "rx"))
            past = sum(pair.grown("accelnet.nics", nic, "stats", f"vf_{way}_bytes") for way in ("tx", "rx"))
        except Unread as missing:
            found.append(unread("net/vf-share", subject, missing))
            continue
        least = pair.after.expect.get("min_vf_share_pct")
        value = 100 * past / moved if moved else 0.0
        said = f"{value:.1f} % of {moved} bytes in {pair.window_s:.1f} s went by the VF"
        data: dict[str, Any] = {"value": round(value, 2), "unit": "%", "limit": least, "bytes": moved}
        if moved < LEAST_BYTES:
            said = f"only {moved} bytes in {pair.window_s:.1f} s, too few to tell"
            found.append(Finding(code="net/vf-share", verdict=Verdict.SKIP, subject=subject, message=said))
        elif value >= least:
            found.append(Finding(code="net/vf-share", verdict=Verdict.PASS, subject=subject, message=said, data=data))
        else:
            found.append(
                Finding(
                    code="net/vf-share",
                    verdict=Verdict.WARN,
                    subject=subject,
                    message=said,
                    evidence=(Evidence(f"ethtool -S {nic}", f"vf_*_bytes +{past}"),),
                    remedy=f"on {pair.after.facts.node}: dmesg | grep 'Data path'; ip -d link show",
                    data=data,
                )
            )
    return found


def _port(pair: Pair, port: str) -> Subject:
    return Subject(kind="port", nodes=(pair.after.facts.node,), name=port)


def _well(pair: Pair, code: str, port: str, said: str) -> Finding:
    return Finding(code=code, verdict=Verdict.PASS, subject=_port(pair, port), message=said)


def _folded(found: Sequence[Finding], node: str) -> list[Finding]:
    """Ports that are well are one finding for each code, as in the catalogue."""
    out = [f for f in found if f.verdict is not Verdict.PASS]
    for code in dict.fromkeys(f.code for f in found if f.verdict is Verdict.PASS):
        well = [f for f in found if f.code == code and f.verdict is Verdict.PASS]
        said = well[0].message if len(well) == 1 else f"{len(well)} ports: {well[0].message}"
        out.append(
            Finding(
                code=code,
                verdict=Verdict.PASS,
                subject=Subject(kind="node", nodes=(node,)),
                message=said,
                data={"parts": [f.subject.name for f in well]},
            )
        )
    return out
