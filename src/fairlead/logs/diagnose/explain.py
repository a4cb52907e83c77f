"""A job's diagnosis, whole: from a question to the store's answers to the cause; by whoever has the store open."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.logs.diagnose.asking import Engine, find_job, gather, templates
from fairlead.logs.diagnose.choose import NOTHING, diagnose
from fairlead.logs.diagnose.model import Diagnosis, Rank, Told
from fairlead.logs.diagnose.unusual import unusual

MOST_FINDINGS, MOST_RANKS = 100_000, 65_536
_NS = Meta(ge=-(1 << 62), lt=1 << 62)


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Why did this job end so? With what is known beside the store."""

    job: Annotated[int, Meta(ge=0, lt=1 << 62)]
    at_ns: Annotated[int, _NS] | None = None
    """One of several runs of it, or a job that still runs; ns since 1970, UTC."""
    findings: Annotated[tuple[Told, ...], Meta(max_length=MOST_FINDINGS)] = ()
    dumps: Annotated[tuple[Rank, ...], Meta(max_length=MOST_RANKS)] = ()


def explained(engine: Engine, why: Why) -> Diagnosis:
    """The diagnosis. Raises FairleadError (`logs/no-job`)."""
    facts = find_job(engine, why.job, why.at_ns)
    if why.at_ns is not None and (facts.end_ns is None or why.at_ns < facts.end_ns):
        facts = replace(facts, end_ns=why.at_ns)
    now_ns = facts.end_ns or time.time_ns()
    found = diagnose(gather(engine, facts, now_ns, findings=why.findings, dumps=why.dumps), now_ns)
    if found.what != NOTHING:
        return found
    return msgspec.structs.replace(found, unusual=unusual(templates(engine, facts, now_ns)))
