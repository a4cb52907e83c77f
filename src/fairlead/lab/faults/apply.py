"""Injecting and healing: from faults to effects, from effects to a changed lab.

Knows: the record, and the way from one set of faults to another. Must not know: kinds of faults beyond the catalogue,
or how an effect comes about (worker.py).

    record the new set of faults -> effects before, effects after -> do what differs

The record is written first. Whatever cuts this short, healing all finds in the record what may be in force; each step
may be done twice.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import logging
from collections.abc import Sequence

import msgspec

from fairlead.errors import FairleadError, UsageError
from fairlead.lab import hosttree, store
from fairlead.lab.faults import catalog
from fairlead.lab.faults.effects import Effects, changes, merged
from fairlead.lab.faults.kinds import Settings, View
from fairlead.lab.faults.worker import Worker, faketime
from fairlead.lab.plan import host_plan
from fairlead.lab.shape import LabShape
from fairlead.records.labstate import Fault, LabState
from fairlead.records.log import tell

log = logging.getLogger("fairlead.lab")


def inject(name: str, kind: str, target: str, given: Settings) -> Fault:
    """Put a fault in force in a running lab; returns its record. Where it cannot be, nothing is changed.

    Raises UsageError for an unknown kind, target or setting, LabError, NotPermitted or MissingTool otherwise.
    """
    with store.locked(name):
        state = store.running(name)
        view = view_of(state)
        fault = _prepared(state, view, kind, target, given)
        try:
            _change(state, view, (*state.faults, fault))
        except FairleadError:
            half = store.running(name)
            with contextlib.suppress(FairleadError):
                _change(half, view, state.faults)
            raise
        tell(log, "fault injected", lab=name, id=fault.id, kind=fault.kind, target=fault.target, params=fault.params)
        return fault


def heal(name: str, which: str) -> list[Fault]:
    """Take faults out of force: `all`, an id, a kind, a target, or `KIND TARGET`. UsageError where there is none."""
    with store.locked(name):
        state = store.running(name)
        healed = [f for f in state.faults if which in ("all", str(f.id), f.kind, f.target, f"{f.kind} {f.target}")]
        if not healed and which != "all":
            raise UsageError(
                "lab/no-such-fault", f"no fault `{which}` is in force", hint=f"fairlead lab status -n {name}"
            )
        _change(state, view_of(state), tuple(f for f in state.faults if f not in healed))
        tell(log, "faults healed", lab=name, ids=[f.id for f in healed])
        return healed


def view_of(state: LabState) -> View:
    """The lab as kinds of faults see it."""
    shape = msgspec.convert(state.shape, LabShape)

    @functools.cache
    def tree(node: str) -> hosttree.Tree:
        host = state.host(node)
        assert host is not None
        plan = host_plan(shape, state, host)
        facts = hosttree.captured(plan["facts"]) if plan["facts"] else hosttree.generated(plan["shows"])
        return {**facts, **plan["files"]}

    return View(shape, tree)


def effects_of(view: View, fault: Fault) -> Effects:
    """What one fault asks for, over all its targets."""
    kind = catalog.kind_of(fault.kind)
    targets = catalog.targets_of(kind, fault.target, view)
    return merged(kind.effects(view, fault.id, target, fault.params) for target in targets)


def _prepared(state: LabState, view: View, kind: str, target: str, given: Settings) -> Fault:
    """The record of a fault, checked against the lab but not yet in force."""
    if kind == "clock-skew":
        faketime()
    fault = Fault(
        id=max((f.id for f in state.faults), default=0) + 1,
        kind=kind,
        target=target,
        params=catalog.settings_of(catalog.kind_of(kind), given),
        since=dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
    )
    effects_of(view, fault)
    return fault


def _change(state: LabState, view: View, faults: Sequence[Fault]) -> None:
    """Go from the faults of a record to another set."""
    before = merged(effects_of(view, f) for f in state.faults)
    after = merged(effects_of(view, f) for f in faults)
    state = msgspec.structs.replace(state, faults=tuple(faults))
    store.write(state)
    worker = Worker(state, view, after)
    for change in changes(before, after):
        worker.do(change)
