"""Bringing effects about in a running lab, each by the one tool that does it.

Knows: `ip`, `tc`, `nft`, cgroups, files of a host. Must not know: faults, or why something is asked for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fairlead.cluster.enter import into_keeper
from fairlead.errors import LabError, MissingTool
from fairlead.lab import cgroups, inside, services, store, wiring
from fairlead.lab.faults import hostfiles
from fairlead.lab.faults.effects import Change, Effects, Flap, HostFile, Port
from fairlead.lab.faults.kinds import FAKETIME_PLACE, View, table_name
from fairlead.lab.plan import host_plan
from fairlead.records.labstate import HostState, LabState

_BALLAST = "run/fairlead/ballast"
_FILL_TRIES = 8
_FLAPS = "/run/flaps"
_IP, _TC, _NFT = ("ip", "-batch", "-"), ("tc", "-batch", "-"), ("nft", "-f", "-")


class Worker:
    """Carries changes out, one method a field of Effects."""

    def __init__(self, state: LabState, view: View, after: Effects) -> None:
        """`after` is all that will be asked for when every change is done."""
        self._state, self._view, self._after = state, view, after
        self._setups = {s.netns: s for s in (wiring.management_setup(view.shape), *wiring.setups(view.shape))}

    def do(self, change: Change) -> None:
        """Bring one difference about. Raises LabError where the kernel refuses it."""
        getattr(self, f"_{change.what}")(change.key, change.value, is_on=change.is_on)

    # ---- ports -----------------------------------------------------------------------------------------------------

    def _down(self, port: Port, _: int, *, is_on: bool) -> None:
        lines = [f"link set dev {port.device} down"] if is_on else self._lines_of(port)
        inside.say(self._state, port.netns, _IP, lines)

    def _lines_of(self, port: Port) -> list[str]:
        """What a port was told when it was made: the kernel forgot its routes and neighbours when it went down."""
        return [line for line in self._setups[port.netns].ip if re.search(rf"\b{port.device}\b", line)]

    def _flaps(self, port: Port, flap: Flap, *, is_on: bool) -> None:
        """A loop of the shell, beside the keeper so that it ends with the lab; its process group is noted in a file."""
        note = f"{_FLAPS}/{port.netns}.{port.device}"
        if is_on:
            up = shlex.quote("\n".join(self._lines_of(port)))
            loop = (
                f"mkdir -p {_FLAPS}; echo $$ >{note}; "
                f"while :; do ip link set {port.device} down; sleep {flap.down_s:g}; "
                f"printf '%s\\n' {up} | ip -batch -; sleep {flap.up_s:g}; done"
            )
            words = f"setsid nsenter --net=/run/netns/{port.netns} sh -c {shlex.quote(loop)}"
            self._beside_keeper(f"{words} </dev/null >/dev/null 2>&1 &")
        else:
            self._beside_keeper(f'[ -e {note} ] && kill -9 "-$(cat {note})"; rm -f {note}')
            inside.say(self._state, port.netns, _IP, self._lines_of(port))

    def _beside_keeper(self, script: str) -> None:
        words = into_keeper(self._state, ["sh", "-c", script])
        subprocess.run(words, timeout=inside.LIMIT_S, check=False)

    def _filters(self, key: tuple[Port, int], text: str, *, is_on: bool) -> None:
        port, fault = key
        name = table_name(fault)
        # one transaction: the table is never half there, and a second injection replaces the first. Two ports of a
        # namespace share a fault's table, so it is always made of all of them
        tables = [t[fault] for p, t in self._after.filters.items() if p.netns == port.netns and fault in t]
        whole = [f"table netdev {name}", f"delete table netdev {name}", *tables]
        inside.say(self._state, port.netns, _NFT, whole)

    def _queues(self, port: Port, lines: Sequence[str], *, is_on: bool) -> None:
        nominal = [line for line in self._setups[port.netns].tc if f"dev {port.device} " in line]
        with contextlib.suppress(LabError):  # there may be nothing to delete
            inside.say(self._state, port.netns, _TC, [f"qdisc del dev {port.device} root"])
        inside.say(self._state, port.netns, _TC, lines if is_on else nominal)

    # ---- hosts -----------------------------------------------------------------------------------------------------

    def _host(self, name: str) -> HostState:
        host = self._state.host(name)
        assert host is not None
        return host

    def _dead(self, name: str, _: int, *, is_on: bool) -> None:
        inside.kill(self._host(name))
        anchor = None
        if not is_on:
            anchor = inside.boot(self._state, host_plan(self._view.shape, self._state, self._host(name)))
        host = msgspec.structs.replace(self._host(name), anchor=anchor)
        hosts = tuple(host if h.name == name else h for h in self._state.hosts)
        self._state = msgspec.structs.replace(self._state, hosts=hosts)
        store.write(self._state)
        if anchor:
            services.start_host(self._view.shape, self._state, host)
            self._again_on(host)

    def _again_on(self, host: HostState) -> None:
        """A booted host has forgotten what other faults did to it."""
        for file, content in self._after.files.items():
            if file.host == host.name:
                self._files(file, content, is_on=True)
        if host.name in self._after.disk_pct:
            self._disk_pct(host.name, self._after.disk_pct[host.name], is_on=True)
        if host.name in self._after.hung:
            inside.freeze(host, frozen=True)

    def _hung(self, name: str, _: int, *, is_on: bool) -> None:
        inside.freeze(self._host(name), frozen=is_on)

    def _cpu_pct(self, name: str, percent: float, *, is_on: bool) -> None:
        cgroups.set_cpu_quota(self._host(name).cgroups, percent if is_on else None)

    def _disk_pct(self, name: str, percent: float, *, is_on: bool) -> None:
        host = self._host(name)
        if host.anchor is None:
            return
        ballast = inside.host_path(host, _BALLAST)
        ballast.parent.mkdir(parents=True, exist_ok=True)
        ballast.unlink(missing_ok=True)
        if is_on:
            with ballast.open("wb") as file:
                _fill(file.fileno(), percent)

    def _files(self, file: HostFile, content: bytes | None, *, is_on: bool) -> None:
        host = self._host(file.host)
        if host.anchor is None:
            return
        own = self._view.tree(file.host).get(file.path)
        own = own.encode() if isinstance(own, str) else own
        if not is_on:
            hostfiles.restore(host, file.path, own)
            return
        if content is not None:
            content = content.replace(FAKETIME_PLACE.encode(), _faketime_or_nothing().encode())
        hostfiles.change(host, file.path, content, own)


def _fill(file: int, percent: float) -> None:
    """Make an empty file so long that its file space is this full. The host's programs may write meanwhile."""
    for left in reversed(range(_FILL_TRIES)):
        space = os.fstatvfs(file)
        wanted = int(space.f_blocks * percent / 100) - (space.f_blocks - space.f_bavail)
        if wanted <= 0:
            return
        try:
            os.posix_fallocate(file, 0, wanted * space.f_frsize)
        except OSError as error:
            if error.errno != errno.ENOSPC or not left:
                raise
        else:
            return


def faketime() -> str:
    """Where libfaketime is. Raises MissingTool."""
    found = _faketime_or_nothing()
    if not found:
        raise MissingTool("lab/missing-tool", "clock skew needs libfaketime", hint="apt-get install faketime")
    return found


def _faketime_or_nothing() -> str:
    places = ("lib/*/faketime", "lib/faketime", "lib64/faketime")
    return next((str(p) for place in places for p in sorted(Path("/usr").glob(f"{place}/libfaketimeMT.so.1"))), "")
