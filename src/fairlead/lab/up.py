"""`up` and `down`: from a shape to a running lab and its record, and back to nothing.

Knows: the order of record, cgroups, keeper and commit that leaves nothing behind wherever it is cut short. Must not
know: what the fabric looks like (wiring.py) or how the keeper builds it (keeper.py).

    lock -> sweep what a killed run left -> record (phase building) -> cgroups -> keeper builds -> services
         -> record (phase up) -> commit

Killed before the record: nothing exists. Killed before commit: the kernel ends the keeper and all it holds; the record
names the cgroups for the next sweep. Killed after: the lab stands and its record is whole.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from fairlead.errors import LabError, MissingTool, NotPermitted
from fairlead.lab import cgroups, hosttree, services, store, wiring
from fairlead.lab.shape import LabShape, check_memory
from fairlead.lab.syscalls import has_sys_admin
from fairlead.records.codec import from_json, to_json
from fairlead.records.labstate import HostPort, HostState, LabState, LinkEnd, LinkState, Process, SwitchState
from fairlead.spec import usid
from fairlead.spec.topology import t0_name, t1_name

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
            _check_tools(shape)
            check_memory(shape, _available_kib())
            return _build(shape)
        except BaseException:
            _sweep(shape.name, store.read(shape.name))
            raise


def down(name: str) -> bool:
    """Take a lab down; whatever is left of it goes. Returns whether anything was there."""
    if name not in store.names():
        return False
    with store.locked(name):
        with contextlib.suppress(LabError):
            _sweep(name, store.read(name))
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
    """End what a record names. Safe to repeat, safe on a record whose processes are long gone."""
    if state is None:
        return
    if state.keeper and store.is_alive(state.keeper):
        _end(state.keeper)
    left = cgroups.remove([Path(p) for p in state.cgroup_roots])
    if left:
        raise LabError(
            "lab/left-over",
            f"{left[0]} cannot be removed: a process in it does not end",
            hint=f"cat {left[0]}/*/cgroup.procs, then fairlead lab down --name {name}",
        )
    with contextlib.suppress(FileNotFoundError):
        (store.folder(name) / "state.json").unlink()


def _end(process: Process) -> None:
    """Kill the keeper and wait until the kernel has ended all that was in its PID namespace."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            if store.is_alive(process):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                poll = select.poll()
                poll.register(handle, select.POLLIN)
                poll.poll(30_000)
        finally:
            os.close(handle)


def _check_tools(shape: LabShape) -> None:
    needed = dict(_TOOLS) | services.tools(shape)
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    for tool, package in needed.items():
        if not shutil.which(tool, path=path):
            raise MissingTool("lab/missing-tool", f"the lab needs `{tool}`", hint=f"apt-get install {package}")
    os.environ["PATH"] = path
    if not Path("/proc/sys/net/ipv6/conf/all/seg6_enabled").exists():
        raise no_srv6()


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
    found = cgroups.mounts(Path("/proc/mounts").read_text())
    roots = cgroups.choose(shape.name, privileged=privileged, found=found, own=Path("/proc/self/cgroup").read_text())
    state = describe(shape, roots, is_rootless=not privileged)
    store.write(state)
    services.prepare(shape, store.folder(shape.name))
    cgroups.create(roots, [h.name for h in state.hosts])

    # a fresh interpreter: forking this one would copy its threads' locks and its memory into every host
    keeper = subprocess.Popen(
        [sys.executable, "-P", "-c", "from fairlead.lab.keeper import main; main()", shape.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.write(json.dumps(plan(shape, state, roots)) + "\n")
            keeper.stdin.flush()
        report = _report(keeper)
        anchors = {name: Process(**found) for name, found in report["anchors"].items()}
        state = msgspec.structs.replace(
            state,
            phase="up",
            keeper=Process(**report["keeper"]),
            hosts=tuple(msgspec.structs.replace(h, anchor=anchors[h.name]) for h in state.hosts),
        )
        state = services.start(shape, state)
        store.write(state)
        keeper.stdin.write("commit\n")
        keeper.stdin.flush()
        _report(keeper)
        keeper.wait(10)
    finally:
        if keeper.poll() is None:
            keeper.kill()
            keeper.wait()
        keeper.stdin.close()
        keeper.stdout.close()
    return state


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
            hint="run as root, or allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000",
        )
    if step == "ip" and ("seg6local" in line or "next-csid" in line):
        return no_srv6()
    return LabError("lab/build", f"cannot build the lab: {step} refused `{line}`: {detail}", hint="fairlead doctor")


def describe(shape: LabShape, roots: Sequence[Path], *, is_rootless: bool) -> LabState:
    """The record of a lab before it is built: everything but processes. Pure but for the clock and the user."""
    topo = shape.topology
    hosts = []
    by_host = [link for link in wiring.links(shape) if link.lower.device.startswith("eth")]
    for number, node in enumerate(shape.nodes):
        t0, port = topo.seat(number)
        own = [link for link in by_host if link.lower.netns == node]
        ports = tuple(
            HostPort(
                plane=plane,
                interface=link.lower.device,
                address=str(usid.port_address(plane, t0, port)),
                link=link.name,
                mac=link.lower.mac,
            )
            for plane, link in enumerate(own)
        )
        hosts.append(
            HostState(
                name=node,
                number=number,
                t0=t0,
                port=port,
                management=str(wiring.management_address(number)),
                fabric=str(usid.fabric_address(t0, port)),
                ports=ports,
                cgroups=cgroups.dirs(roots, node),
            )
        )
    if shape.slurm:
        hosts.append(
            HostState(
                name="head",
                number=len(shape.nodes),
                t0=-1,
                port=-1,
                management=str(wiring.management_address(len(shape.nodes))),
                fabric="",
                cgroups=cgroups.dirs(roots, "head"),
            )
        )
    return LabState(
        name=shape.name,
        phase="building",
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        uid=os.geteuid(),
        is_rootless=is_rootless,
        shape=from_json(to_json(shape), dict),
        cgroup_roots=tuple(map(str, roots)),
        hosts=tuple(hosts),
        switches=tuple(_switches(shape)),
        links=tuple(
            LinkState(
                name=link.name,
                plane=int(link.name[1 : link.name.index("/")]),
                lower=LinkEnd(link.lower.netns, link.lower.device),
                upper=LinkEnd(link.upper.netns, link.upper.device),
                rate_mbps=link.rate_mbps,
            )
            for link in wiring.links(shape)
        ),
    )


def _switches(shape: LabShape) -> list[SwitchState]:
    def switch(name: str, plane: int, tier: int, index: int, segment: int) -> SwitchState:
        return SwitchState(
            name=name,
            plane=plane,
            tier=0 if tier == 0 else 1,
            index=index,
            netns=wiring.netns_of(name),
            segment=usid.locator(plane, segment),
        )

    out = []
    for plane in range(shape.planes):
        out += [switch(t0_name(plane, i), plane, 0, i, usid.t0_usid(i)) for i in range(shape.t0)]
        out += [switch(t1_name(plane, j), plane, 1, j, usid.t1_usid(j)) for j in range(shape.t1)]
    return out


def plan(shape: LabShape, state: LabState, roots: Sequence[Path]) -> dict[str, Any]:
    """What the keeper is to do, as plain JSON."""
    setups = [wiring.management_setup(shape), *wiring.setups(shape)]
    ends = [end for link in wiring.links(shape) for end in (link.lower, link.upper)]
    return {
        "lab": shape.name,
        "rootless": state.is_rootless,
        "keeper_cgroups": cgroups.dirs(roots, cgroups.KEEPER),
        "netns": [s.netns for s in setups[1:]],
        "before_devices": wiring.BEFORE_DEVICES,
        "links": wiring.link_lines(shape),
        "setups": [{"netns": s.netns, "sysctl": s.sysctl, "ip": s.ip, "tc": s.tc} for s in setups],
        "computed_checksums": [] if shape.checksum_offload else [(e.netns, e.device) for e in ends],
        "hosts": [host_plan(shape, state, host) for host in state.hosts],
    }


def host_plan(shape: LabShape, state: LabState, host: HostState) -> dict[str, Any]:
    """What an anchor is to do for one host."""
    is_head = not host.ports
    ports = [{"device": p.interface, "mac": p.mac, "address": p.address, "gbps": 100} for p in host.ports]
    what = hosttree.shows(host.name, host.number, gpus=0 if is_head else shape.gpus, ports=ports)
    facts = str(Path(shape.facts, host.name)) if shape.facts and not is_head else ""
    return {
        "name": host.name,
        "netns": f"/run/netns/{host.name}",
        "cgroups": host.cgroups,
        "scratch_mib": shape.scratch_mib,
        "shows": what,
        "facts": facts,
        "devices": hosttree.device_names(what),
        "files": {"etc/hosts": etc_hosts(state, host), "etc/hostname": f"{host.name}\n"} | services.files(shape, state),
        "private": services.private(shape),
        "shares": _shares(),
    }


def etc_hosts(state: LabState, host: HostState) -> str:
    """Names as a host sees them: a node's plain name is its fabric address, except on the head, which has none."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost", f"{wiring.MANAGEMENT_HEAD} gateway"]
    for other in state.hosts:
        plain = other.fabric if other.fabric and host.fabric else other.management
        lines.append(f"{plain} {other.name}")
        lines.append(f"{other.management} {other.name}-mgmt")
    return "\n".join(lines) + "\n"


def _shares() -> list[str]:
    """Directories of the machine that hosts must see whatever they hide: this Python and this package."""
    package = Path(__file__).resolve().parents[2]
    return sorted({sys.prefix, sys.base_prefix, str(package)})
