"""Now, as metrics for Prometheus: text format 0.0.4, base units, no times. Pure."""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Series = tuple[dict[str, str], float]

MAX_FINDINGS = 200


def metrics_text(now: dict[str, Any]) -> str:
    """All metrics of a picture of now (judge.py, with `self` and `head` of main.py)."""
    ports, me = now.get("ports", {}), now.get("self", {})

    def of_ports(key: str) -> list[Series]:
        return [({"port": name}, port[key]) for name, port in sorted(ports.items()) if port.get(key) is not None]

    rows: list[tuple[str, str, str, Iterable[Series]]] = [
        ("port_active", "gauge", "1 where an RDMA port is active",
         [({"port": name}, port["state"].startswith("4:")) for name, port in sorted(ports.items()) if "state" in port]),
        ("port_received_bytes_total", "counter", "Bytes an RDMA port received", of_ports("rx_total")),
        ("port_transmitted_bytes_total", "counter", "Bytes an RDMA port sent", of_ports("tx_total")),
        ("port_owners", "gauge", "Who holds a queue pair or an open context on an RDMA port",
         [({"port": name}, len(port["owners"])) for name, port in sorted(ports.items())]),
        ("vf_bytes_ratio", "gauge", "Share of a NIC's bytes that took its virtual function",
         [({"link": name}, link["vf_share"]) for name, link in sorted(now.get("links", {}).items())
          if link.get("vf_share") is not None]),
        ("talker_bytes_per_second", "gauge", "Bytes of ports that one job or user holds alone, or shares",
         [({"who": t["who"], "how": how}, t[how + "_bps"])
          for t in now.get("talkers", []) for how in ("alone", "shared")]),
        ("finding", "gauge", "What is not well",
         [({"code": f["code"], "verdict": f["verdict"], "part": _part_of_finding(f)}, 1)
          for f in now.get("findings", [])[:MAX_FINDINGS]]),
        ("records_total", "counter", "Audit records written", [({}, now.get("head", [-1])[0] + 1)]),
        ("last_look_timestamp_seconds", "gauge", "When the machine was last looked at", [({}, now.get("t", 0) / 1e9)]),
        ("cpu_seconds_total", "counter", "Processor time of the watch itself", [({}, me.get("cpu_s", 0.0))]),
        ("resident_memory_bytes", "gauge", "Memory of the watch itself", [({}, me.get("rss_bytes", 0))]),
    ]  # fmt: skip
    return "".join(_family(*row) for row in rows)


def _part_of_finding(found: dict[str, Any]) -> str:
    counter = found.get("data", {}).get("counter", "")
    return "%s %s" % (found["part"], counter) if counter else str(found["part"])


def _family(name: str, kind: str, what: str, series: Iterable[Series]) -> str:
    lines = ["%s%s %s\n" % (name, _labelled(labels), _figure(value)) for labels, value in series]
    full = "fairlead_watch_"
    head = ["# HELP %s%s %s\n# TYPE %s%s %s\n" % (full, name, what, full, name, kind)] if lines else []
    return "".join([*head, *(full + line for line in lines)])


def _labelled(labels: dict[str, str]) -> str:
    inner = ",".join('%s="%s"' % (key, escaped(text)) for key, text in labels.items())
    return "{%s}" % inner if inner else ""


def escaped(text: str) -> str:
    r"""A label's value: what a process calls itself, on one line, with the format's escapes.

    >>> escaped('a "b"' + chr(10))
    'a \\"b\\"\\\\x0a'
    """
    plain = "".join(c if c.isprintable() else "\\x%02x" % ord(c) for c in text)
    return plain.replace("\\", "\\\\").replace('"', '\\"')


def _figure(value: float) -> str:
    number = float(value)
    if not math.isfinite(number):
        return "NaN"
    return str(int(number)) if number == int(number) else repr(number)
