"""`fairlead fabric trace`: every packet of a short transfer, as events, a capture for Wireshark, and counters."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.base.program import Program
from fairlead.base.table import table
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.fabric_ends import Ends, Said
from fairlead.cli.fabric_perf import PARTS, SLACK_S, check, wish_of
from fairlead.cli.output import Answer
from fairlead.errors import FabricError, MissingTool, UsageError
from fairlead.records.fabricevent import FabricEvent, line
from fairlead.records.verdict import Verdict

if TYPE_CHECKING:
    from fairlead.fabric.transport.tape import Taped
    from fairlead.records.addressbook import Place

SCHEMA = "fairlead.fabric-trace/1"
MAX_PACKETS = 100_000


def trace(
    source: str,
    target: str,
    /,
    *,
    duration: float = 0.2,
    message: int = 1 << 16,
    depth: int = 4,
    packets: int = 20_000,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Write messages from one node to another and keep every packet: when, by which plane and path, what it was.

    The run folder has `events.jsonl`, a capture of each end (NODE.pcap, with `mrc.lua` for Wireshark beside it) and
    counters by queue pair, plane and path (`metrics.prom`). The ends work in plain Python, more slowly than in
    `fairlead fabric perf`. The nodes' Python must have fairlead[fabric] installed (`python` of the pool).

    Parameters
    ----------
    source
        The node that writes.
    target
        The node that is written to.
    duration
        Seconds.
    message
        Bytes of a message.
    depth
        Messages under way at once.
    packets
        How many each end keeps; later ones are counted.
    spec
        The cluster file; else FAIRLEAD_SPEC, ./cluster.toml, or the lab.
    """
    from fairlead.cli.probe import from_nodes
    from fairlead.cluster import connect
    from fairlead.fabric.transport import tape
    from fairlead.probe.addresses import book_of

    check(source, target, duration, duration, [message], depth)
    if not 1 <= packets <= MAX_PACKETS:
        raise UsageError("cli/usage", f"--packets must be 1 to {MAX_PACKETS}", hint="fairlead fabric trace --help")
    facts, silent, cluster_file, folder = from_nodes(f"{source},{target}", "", None, spec, common, imds=False)
    if silent:
        raise FabricError("fabric/no-place", silent[0].message, hint=f"fairlead probe -w {source},{target}")
    wish = wish_of(duration=duration, interval=duration, sizes=[message], depth=depth, tape=packets)
    ends = _Taped(source, target, book_of(facts), wish)
    program = Program.of("fairlead-perf", *PARTS, call="main()", needs_packages=True)
    with (
        connect(cluster_file) as cluster,
        cluster.start(program, f"{source},{target}", limit_s=duration + SLACK_S) as group,
    ):
        try:
            ends.run(group)
        except MissingTool as exc:
            body = {"missing": {"code": exc.code, "message": exc.message}}
            return Answer(schema=SCHEMA, verdict=Verdict.UNKNOWN, text=exc.message, body=body, hints=[exc.hint])
    assert folder is not None
    events: list[FabricEvent] = []
    for node, taped in ends.tapes.items():
        folder.write(f"{node}.pcap", tape.capture(taped))
        events += tape.events(taped, node, _planes(ends.place(node)))
    events.sort(key=lambda e: e.at_ns)
    folder.write("events.jsonl", "".join(map(line, events)))
    folder.write("metrics.prom", ends.metrics_text())
    folder.write("mrc.lua", resources.files("fairlead.fabric.transport").joinpath("mrc.lua").read_text("utf-8"))
    kinds = _kinds(events)
    left_out = sum(ends.left_out.values())
    read = f"wireshark -X lua_script:{folder.path}/mrc.lua {folder.path}/{source}.pcap"
    return Answer(
        schema=SCHEMA,
        verdict=Verdict.PASS if all(s.intact for s in ends.seen.values()) and all(ends.done.values()) else Verdict.FAIL,
        text=f"{_table(kinds)}\n\n{len(events):,} packets kept, {left_out:,} later ones not\n{read}",
        body={"source": source, "target": target, "events": len(events), "left_out": left_out, "kinds": kinds},
    )


class _Taped(Ends):
    """The two ends, and what they wrote down."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.tapes: dict[str, list[Taped]] = {self.source: [], self.target: []}

    def taped(self, node: str, said: Said) -> None:
        """Datagrams of an end: no more than it was asked for."""
        from fairlead.fabric.transport.tape import Taped

        room = self.wish["tape"] - len(self.tapes[node])
        try:
            self.tapes[node] += [msgspec.json.decode(raw, type=Taped) for raw in said.taped[: max(room, 0)]]
        except msgspec.DecodeError as exc:
            raise FabricError(
                "fabric/perf-failed", f"{node}: what it taped is no datagram", hint="look at the node"
            ) from exc


def _planes(place: Place) -> list[int | None]:
    return [port.plane for port in place.ports if port.address]


def _kinds(events: list[FabricEvent]) -> list[dict[str, Any]]:
    """How many packets of which kind each end sent and received, by plane."""
    found: dict[tuple[str, str, str, int], int] = {}
    for e in events:
        key = (e.node, e.what, e.op or "damaged", -1 if e.plane is None else e.plane)
        found[key] = found.get(key, 0) + 1
    return [
        {"node": node, "what": what, "op": op, "plane": plane, "packets": num}
        for (node, what, op, plane), num in sorted(found.items())
    ]


def _table(kinds: list[dict[str, Any]]) -> str:
    planes = sorted({row["plane"] for row in kinds})
    rows: dict[tuple[str, str, str], dict[int, int]] = {}
    for row in kinds:
        rows.setdefault((row["node"], row["what"], row["op"]), {})[row["plane"]] = row["packets"]
    heads = ["NODE", "", "PACKET", *(f"PLANE {plane}" for plane in planes)]
    return table(heads, [[*key, *(f"{own.get(plane, 0):,}" for plane in planes)] for key, own in rows.items()])
