"""`up` and `down`: from a shape to a running lab and its record, and back to nothing.

Knows: the order of record, cgroups, keeper and commit that leaves nothing behind wherever it is cut short. Must not
know: what the fabric looks like (wiring.py) or how the keeper builds it (keeper.py).

    lock -> sweep what a killed run left -> record (phase building) -> cgroups -> keeper builds
         -> record (building, names the processes) -> services -> next record (phase up) -> commit
         -> the keeper lets go of this process and puts the next record in place

Killed before the record: nothing exists. Killed before commit: the kernel ends the keeper and all it holds; the record
names the cgroups for the next sweep. Killed after: the lab stands and its record is whole. The keeper does the last
step, so there is no moment at which the record says `up` of a lab that is about to die with the process that built it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import select
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fairlead.base.trust import search_path
from fairlead.errors import LabError, MissingTool, NotPermitted
from fairlead.lab import cgroups, inside, services, store
from fairlead.lab.plan import describe, plan
from fairlead.lab.shape import LabShape, check_memory
from fairlead.lab.syscalls import has_sys_admin
from fairlead.records.labstate import LabState, Process
from fairlead.records.log import doing

log = logging.getLogger("fairlead.lab")

BUILD_LIMIT_S = 300.0
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables", "nsenter": "util-linux"}


def up(shape: LabShape) -> LabState:
    """Build a lab, or find it built: the same shape under the same name is not built twice.

    Raises LabError (`lab/other-shape`, `lab/memory`, `lab/build`), MissingTool, NotPermitted; nothing is then left.
    """
    with store.locked(shape.name):
        found = store.read(shape.name)
        if store.is_up(found):
            assert found is not None
            return _same(found, shape)
        _sweep(shape.name, found)
        try:
            _check_machine(shape)
            check_memory(shape, _available_kib())
            with doing(log, "build", lab=shape.name, hosts=len(shape.nodes), planes=shape.planes):
                return _build(shape)
        except BaseException:
            _sweep(shape.name, store.read(shape.name))
            store.forget(shape.name)
            raise


def down(name: str) -> bool:
    """Take a lab down; whatever is left of it goes. Returns whether anything was there.

    Raises LabError `lab/left-over` where a process does not end; its record then stays for another try.
    """
    if name not in store.names():
        return False
    with store.locked(name), doing(log, "take down", lab=name):
        try:
            state = store.read(name)
        except LabError:
            state = None  # a record that cannot be read names nothing, but the lab's places can be told from its name
        _sweep(name, state)
        store.forget(name)
    return True


def _same(found: LabState, shape: LabShape) -> LabState:
    built = msgspec.convert(found.shape, LabShape)
    if built == shape:
        return found
    differing = [n for n in shape.__struct_fields__ if getattr(built, n) != getattr(shape, n)]
    raise LabError(
        "lab/other-shape",
        f"the lab `{shape.name}` is up with another shape ({', '.join(differing)})",
        hint=f"fairlead lab down --name {shape.name}, or give the new one another name",
    )


def _sweep(name: str, state: LabState | None) -> None:
    """End what is there of a lab. Safe to repeat, safe on a record whose processes are long gone."""
    if state and state.keeper:
        inside.end(state.keeper)
    # a killed `up` may have left a process that no record names yet; it is dying, and this waits for it as well
    if not store.await_death(name):
        raise _left_over(name, "a process of it does not end", "ps ax | grep lab.keeper")
    roots = [Path(p) for p in state.cgroup_roots] if state else _cgroup_roots(name, privileged=has_sys_admin())
    left = cgroups.remove(roots)
    if left:
        raise _left_over(
            name, f"{left[0]} cannot be removed, as a process in it does not end", f"cat {left[0]}/*/cgroup.procs"
        )
    with contextlib.suppress(FileNotFoundError):
        (store.folder(name) / store.RECORD).unlink()


def _left_over(name: str, why: str, look: str) -> LabError:
    return LabError(
        "lab/left-over", f"the lab `{name}` is not gone: {why}", hint=f"{look}; then fairlead lab down -n {name}"
    )


def _check_machine(shape: LabShape) -> None:
    """Refuse early what would fail late: missing programs, kernel features and captured trees."""
    needed = dict(_TOOLS) | services.tools(shape)
    path = search_path(os.environ, "/usr/sbin", "/sbin")
    for tool, package in needed.items():
        if not shutil.which(tool, path=path):
            raise MissingTool("lab/missing-tool", f"the lab needs `{tool}`", hint=f"apt-get install {package}")
    os.environ["PATH"] = path
    if not Path("/proc/sys/net/ipv6/conf/all/seg6_enabled").exists():
        raise no_srv6()
    for node in shape.nodes if shape.facts else ():
        if not Path(shape.facts, node).is_dir():
            raise LabError(
                "lab/no-facts",
                f"no captured tree {Path(shape.facts, node)}",
                hint="`facts` in [lab] names a folder of one folder per node",
            )


def no_srv6() -> MissingTool:
    """This kernel cannot be a lab's fabric."""
    return MissingTool(
        "lab/no-srv6",
        f"this kernel ({platform.release()}) cannot forward SRv6 micro-segments",
        hint="use Linux 6.1 or newer built with IPV6_SEG6_LWTUNNEL, and iproute2 6.1 or newer",
    )


def _available_kib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1])
    return 1 << 40


def _build(shape: LabShape) -> LabState:
    privileged = has_sys_admin()
    services.check(shape, privileged=privileged)
    roots = _cgroup_roots(shape.name, privileged=privileged)
    state = describe(shape, roots, is_rootless=not privileged)
    store.write(state)
    services.prepare(shape, store.folder(shape.name))
    cgroups.create(roots, [h.name for h in state.hosts])

    with _keeper(shape.name) as (keeper, life):
        assert keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.write(json.dumps(plan(shape, state, roots, life)) + "\n")
            keeper.stdin.flush()
        report = _report(keeper)
        anchors = {name: Process(**found) for name, found in report["anchors"].items()}
        state = msgspec.structs.replace(
            state,
            keeper=Process(**report["keeper"]),
            hosts=tuple(msgspec.structs.replace(h, anchor=anchors[h.name]) for h in state.hosts),
        )
        store.write(state)
        state = msgspec.structs.replace(services.start(shape, state), phase="up")
        store.write(state, store.NEXT)
        keeper.stdin.write("commit\n")
        keeper.stdin.flush()
        _report(keeper)
        keeper.wait(10)
    return state


def _cgroup_roots(name: str, *, privileged: bool) -> list[Path]:
    """A lab's cgroups. They are the machine's, and labs kept in another place may have the same name."""
    if elsewhere := os.environ.get("FAIRLEAD_LABS"):
        name += f".{zlib.crc32(os.fsencode(Path(elsewhere).resolve())):08x}"
    found = cgroups.mounts(Path("/proc/mounts").read_text())
    return cgroups.choose(name, privileged=privileged, found=found, own=Path("/proc/self/cgroup").read_text())


@contextlib.contextmanager
def _keeper(name: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The keeper's launcher, and the file by which its end is known; killed if it is still there at the end."""
    life = store.open_life(name)
    try:
        # a fresh interpreter: forking this one would copy its threads' locks and its memory into every host
        with subprocess.Popen(
            [sys.executable, "-P", "-c", "from fairlead.lab.keeper import main; main()", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
            pass_fds=[life],
        ) as keeper:
            try:
                yield keeper, life
            finally:
                keeper.kill()
    finally:
        os.close(life)


def _report(keeper: subprocess.Popen[str]) -> dict[str, Any]:
    """The keeper's next line, or the error it stands for."""
    assert keeper.stdout is not None
    readable, _, _ = select.select([keeper.stdout], [], [], BUILD_LIMIT_S)
    line = keeper.stdout.readline() if readable else ""
    if not line:
        raise LabError("lab/build", "the lab's process ended without a word", hint="fairlead doctor")
    report: dict[str, Any] = json.loads(line)
    if "error" in report:
        raise build_error(report["error"]["step"], report["error"]["line"], report["error"]["detail"])
    return report


def build_error(step: str, line: str, detail: str) -> LabError | MissingTool | NotPermitted:
    """What a failed step means to a user."""
    if step == "unshare" or (step in ("build", "sysctl") and "not permitted" in detail.lower()):
        return NotPermitted(
            "lab/not-permitted",
            f"this user may not make namespaces here ({line}: {detail})",
            hint="run as root, or allow user namespaces: sysctl user.max_user_namespaces=10000",
        )
    if step == "ip" and ("seg6local" in line or "next-csid" in line):
        return no_srv6()
    return LabError("lab/build", f"cannot build the lab: {step} refused `{line}`: {detail}", hint="fairlead doctor")
