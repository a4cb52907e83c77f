"""Injecting and healing: from faults to effects, from effects to a changed lab.

Knows: how each difference between two Effects is brought about. Must not know: kinds of faults beyond the catalogue.

    record the new set of faults -> effects before, effects after -> do what differs

The record is written first. Whatever cuts this short, `restore` (heal everything) or the next change finds in the record
what may be in force; each step may be done twice.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fairlead.errors import LabError, MissingTool
from fairlead.lab import cgroups, hosttree, inside, services, store, wiring
from fairlead.lab.faults import catalog
from fairlead.lab.faults.effects import Change, Effects, Flap, HostFile, Port, changes, merged
from fairlead.lab.shape import LabShape
from fairlead.lab.plan import host_plan
from fairlead.records.labstate import Fault, HostState, LabState

_BALLAST = "run/fairlead/ballast"
_FLAPS = "/run/flaps"


def inject(name: str, kind: str, target: str, given: catalog.Settings) -> Fault:
    """Put a fault in force in a running lab; returns its record. Raises UsageError or LabError, and changes nothing then."""
    with store.locked(name):
        state = store.running(name)
        fault = prepared(state, kind, target, given)
        view = view_of(state)
        effects_of(view, fault)  # a fault that makes no sense here is refused before it is recorded
        _change(state, (*state.faults, fault))
        return fault


def prepared(state: LabState, kind: str, target: str, given: catalog.Settings) -> Fault:
    """The record of a fault, checked against the lab but not yet in force."""
    found = catalog.kind_of(kind)
    shape = msgspec.convert(state.shape, LabShape)
    catalog.targets_of(found, target, shape)
    settings = catalog.settings_of(found, given)
    if kind == "clock-skew":
        faketime()
    return Fault(
        id=max((f.id for f in state.faults), default=0) + 1,
        kind=kind,
        target=target,
        params=settings,
        since=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
    )


def heal(name: str, which: str) -> list[Fault]:
    """Take faults out of force: `all`, an id, a kind, a target, or `KIND TARGET`. Raises LabError `lab/no-such-fault`."""
    with store.locked(name):
        state = store.running(name)
        healed = [f for f in state.faults if which in ("all", str(f.id), f.kind, f.target, f"{f.kind} {f.target}")]
        if not healed and which != "all":
            raise LabError(
                "lab/no-such-fault", f"no fault `{which}` is in force", hint=f"fairlead lab status --name {name}"
            )
        _change(state, tuple(f for f in state.faults if f not in healed))
        return healed


def view_of(state: LabState) -> catalog.View:
    """The lab as the catalogue sees it."""
    shape = msgspec.convert(state.shape, LabShape)

    @functools.cache
    def tree(node: str) -> hosttree.Tree:
        host = state.host(node)
        assert host is not None
        plan = host_plan(shape, state, host)
        facts = hosttree.captured(plan["facts"]) if plan["facts"] else hosttree.generated(plan["shows"])
        return facts | plan["files"]

    return catalog.View(shape, tree)


def effects_of(view: catalog.View, fault: Fault) -> Effects:
    """What one fault asks for, over all its targets."""
    kind = catalog.kind_of(fault.kind)
    return merged(
        kind.effects(view, fault.id, target, fault.params)
        for target in catalog.targets_of(kind, fault.target, view.shape)
    )


def _change(state: LabState, faults: Sequence[Fault]) -> LabState:
    """Go from the faults of the record to another set."""
    view = view_of(state)
    before = merged(effects_of(view, f) for f in state.faults)
    after = merged(effects_of(view, f) for f in faults)
    state = msgspec.structs.replace(state, faults=tuple(faults))
    store.write(state)
    worker = _Worker(state, view, after)
    for change in _ordered(changes(before, after)):
        worker.do(change)
    return worker.state


def _ordered(found: Iterable[Change]) -> list[Change]:
    """Carrier goes before a host dies, so that its last words do not get out; a host lives before its files are mended."""
    rank = {"down": 0, "flaps": 1, "filters": 2, "queues": 3, "dead": 4, "hung": 5}
    return sorted(found, key=lambda c: rank.get(c.what, 6))


class _Worker:
    """Carries changes out, one method a field of Effects."""

    def __init__(self, state: LabState, view: catalog.View, after: Effects) -> None:
        self.state, self.view, self.after = state, view, after
        self.setups = {s.netns: s for s in (wiring.management_setup(view.shape), *wiring.setups(view.shape))}

    def do(self, change: Change) -> None:
        """Bring one difference about."""
        step: Callable[[Any, Any, bool], None] = getattr(self, f"_{change.what}")
        step(change.key, change.value, change.is_on)

    def _down(self, port: Port, _: int, is_on: bool) -> None:
        lines = [f"link set dev {port.device} down"] if is_on else self._lines_of(port)
        inside.say(self.state, port.netns, ["ip", "-batch", "-"], lines)

    def _lines_of(self, port: Port) -> list[str]:
        """What a port was told when it was made: the kernel forgot its routes and neighbours when it went down."""
        return [line for line in self.setups[port.netns].ip if re.search(rf"\b{port.device}\b", line)]

    def _flaps(self, port: Port, flap: Flap, is_on: bool) -> None:
        mark = f"{_FLAPS}/{port.netns}.{port.device}"
        if is_on:
            up = shlex.quote("\n".join(self._lines_of(port)))
            loop = (
                f"mkdir -p {_FLAPS}; echo $$ >{mark}; while :; do ip link set {port.device} down; sleep {flap.down_s:g}; "
                f"printf '%s\\n' {up} | ip -batch -; sleep {flap.up_s:g}; done"
            )
            netns = f"--net=/run/netns/{port.netns}"
            start = f"setsid nsenter {netns} sh -c {shlex.quote(loop)} </dev/null >/dev/null 2>&1 & "
            self._beside_keeper(start)
        else:
            self._beside_keeper(f'[ -e {mark} ] && kill -9 "-$(cat {mark})"; rm -f {mark}')
            if port not in self.after.down:
                inside.say(self.state, port.netns, ["ip", "-batch", "-"], self._lines_of(port))

    def _beside_keeper(self, script: str) -> None:
        import subprocess

        from fairlead.cluster.enter import into_keeper

        subprocess.run(into_keeper(self.state, ["sh", "-c", script]), timeout=inside.LIMIT_S, check=False)

    def _filters(self, key: tuple[Port, int], text: str, is_on: bool) -> None:
        port, fault = key
        name = catalog.table_name(fault)
        # one transaction: the table is never half there, and a second injection replaces the first
        text = f"table netdev {name}\ndelete table netdev {name}\n" + (text if is_on else "")
        # two ports of a namespace share a fault's table, so it is made of all of them
        others = [t[fault] for p, t in self.after.filters.items() if p.netns == port.netns and fault in t and p != port]
        inside.say(self.state, port.netns, ["nft", "-f", "-"], [text, *others])

    def _queues(self, port: Port, lines: Sequence[str], is_on: bool) -> None:
        first = [f"qdisc del dev {port.device} root"]
        nominal = [line for line in self.setups[port.netns].tc if f"dev {port.device} " in line]
        with contextlib.suppress(LabError):  # nothing to delete
            inside.say(self.state, port.netns, ["tc", "-batch", "-"], first)
        inside.say(self.state, port.netns, ["tc", "-batch", "-"], list(lines) if is_on else nominal)

    def _host(self, name: str) -> HostState:
        host = self.state.host(name)
        assert host is not None
        return host

    def _dead(self, name: str, _: int, is_on: bool) -> None:
        host, anchor = self._host(name), None
        inside.kill(host)
        if not is_on:
            anchor = inside.boot(self.state, host_plan(self.view.shape, self.state, host))
        host = msgspec.structs.replace(host, anchor=anchor)
        hosts = tuple(host if h.name == name else h for h in self.state.hosts)
        self.state = msgspec.structs.replace(self.state, hosts=hosts)
        store.write(self.state)
        if anchor:
            services.start_host(self.view.shape, self.state, host)
            self._again_on(host)

    def _again_on(self, host: HostState) -> None:
        """A booted host has forgotten what other faults did to it."""
        if host.name in self.after.hung:
            inside.freeze(host, frozen=True)
        if host.name in self.after.disk_pct:
            self._disk_pct(host.name, self.after.disk_pct[host.name], True)
        for file, content in self.after.files.items():
            if file.host == host.name:
                self._files(file, content, True)

    def _hung(self, name: str, _: int, is_on: bool) -> None:
        inside.freeze(self._host(name), frozen=is_on)

    def _cpu_pct(self, name: str, percent: float, is_on: bool) -> None:
        cgroups.set_cpu_quota(self._host(name).cgroups, percent if is_on else None)

    def _disk_pct(self, name: str, percent: float, is_on: bool) -> None:
        host = self._host(name)
        if host.anchor is None:
            return
        ballast = inside.host_path(host, _BALLAST)
        ballast.parent.mkdir(parents=True, exist_ok=True)
        ballast.unlink(missing_ok=True)
        if is_on:
            space = os.statvfs(ballast.parent)
            used = space.f_blocks - space.f_bavail
            wanted = int(space.f_blocks * percent / 100) - used
            with ballast.open("wb") as file, contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(0, wanted) * space.f_frsize or 1)

    def _files(self, file: HostFile, content: bytes | None, is_on: bool) -> None:
        host = self._host(file.host)
        if host.anchor is None:
            return
        place = inside.host_path(host, file.path)
        if not is_on:
            original = self.view.tree(file.host).get(file.path)
            content = original.encode() if isinstance(original, str) else original
        if content is None:
            _remove(place, inside.host_path(host, ""))
        elif content.decode("latin-1").startswith(hosttree.LINK):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            place.symlink_to(content.decode().removeprefix(hosttree.LINK))
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            # written in place: some files are bound over the kernel's, and a new one would not be seen
            place.write_bytes(content.replace(catalog.FAKETIME_PLACE.encode(), faketime_if_any().encode()))


def _remove(place: Path, root: Path) -> None:
    """Remove a file, and the directories that only it kept."""
    place.unlink(missing_ok=True)
    for folder in place.parents:
        if folder == root or len(folder.relative_to(root).parts) < 3:
            return
        try:
            folder.rmdir()
        except OSError:
            return


def faketime_if_any() -> str:
    """Where libfaketime is; empty where it is not."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")) or sorted(
        Path("/usr/lib").glob("faketime/libfaketimeMT.so.1")
    )
    return str(found[0]) if found else ""


def faketime() -> str:
    """Where libfaketime is. Raises MissingTool."""
    found = faketime_if_any()
    if not found:
        raise MissingTool("lab/missing-tool", "clock skew needs libfaketime", hint="apt-get install faketime")
    return found
