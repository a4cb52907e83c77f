"""Orders as nodes are told them: with addresses at the origin, and of other nodes. Pure, but for the signing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.weights.onnode.layout import REQUEST_BYTES
from fairlead.weights.outcome import NodeState, Options
from fairlead.weights.places import lanes_of
from fairlead.weights.planned import Plan
from fairlead.weights.scheduler import Lease, Order, Return, Survey, Take
from fairlead.weights.sources import Source


def setup_of(plan: Plan, source: Source, options: Options) -> dict[str, Any]:
    """What every node is told first, beside what is this run's or this node's own."""
    return {
        "dest": options.dest,
        "stage": plan.key,
        "chunk_bytes": plan.chunk_bytes,
        "early": 0 if options.verify else plan.early,
        "holds": options.verify,
        "md5_tags": source.has_md5_tags,
        "streams": options.streams,
        "transport": options.transport,
        "connections": options.connections,
        "headers": dict(source.headers),
        "pins": source.pins,
        "dry": options.dry_run,
        "reader": options.stream_to,
        "give_up_s": options.give_up_s,
    }


def words_of(order: Order, members: Sequence[NodeState], plan: Plan, source: Source, at_once: int) -> dict[str, Any]:
    """The message. `members` are the scheduler's nodes; each has `at_once` requests open. Raises FairleadError where no
    address can be had.
    """
    match order:
        case Lease():
            files = {file for c in order.chunks for file, _, _ in plan.chunks[c]}
            urls = source.urls(plan.objects[f].path for f in files)
            # no request is to hold all that the others could fetch meanwhile
            each = max(1, len(order.chunks) // at_once)
            return {
                "do": "lease",
                "chunks": order.chunks,
                "urls": {f: urls[plan.objects[f].path] for f in files},
                "request_bytes": min(REQUEST_BYTES, each * plan.chunk_bytes),
            }
        case Take():
            others = [(members[n], kind) for n, kind in order.sources]
            here = members[order.node].place
            sources = [
                {
                    "node": n.number,
                    "address": n.address,
                    "port": n.port,
                    "kind": kind,
                    "lanes": lanes_of(here, n.place),
                }
                for n, kind in others
            ]
            return {"do": "take", "width": order.width, "sources": sources}
        case Return():
            return {"do": "return"}
        case Survey():
            return {"do": "survey"}
