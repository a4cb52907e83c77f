"""Rules about the host: processors, memory, limits, disks, services, messages (ids H in `fairlead explain`)."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime

from fairlead.base.units import size as size_text
from fairlead.checks.messages import judge_messages
from fairlead.checks.node import Node, Outcome, bad, count_of_ranges, ok, skip, unknown, warn
from fairlead.checks.vmname import concerns
from fairlead.records.facts import Unread

GIB = 1 << 30
SHM = "/dev/shm"  # noqa: S108 - a place to look at


def arch(n: Node, part: str) -> Outcome:
    """The instruction set is the VM size's."""
    expected, found = n.expect.get("cpu_arch"), n.get("host.os.arch")
    data = {"value": found, "expected": expected}
    return ok(found, **data) if found == expected else bad(f"{found}, expected {expected}", **data)


def vm_size(n: Node, part: str) -> Outcome:
    """The platform's own name of the VM is the one declared."""
    found = n.get("imds.compute.vmSize")
    expected = n.expect.size
    if expected in ("lab", "other"):
        return skip("the cluster file names no VM size")
    if str(found).casefold() == expected.casefold():
        return ok(f"the platform calls it {found}", value=found, expected=expected)
    return bad(f"the platform calls it {found}, the cluster file {expected}", value=found, expected=expected)


EVENTS = {
    # the platform's word: (whether the VM is another afterwards or gone, what it means for a job)
    "Freeze": (False, "the VM stands still for seconds"),
    "Reboot": (True, "the VM restarts"),
    "Redeploy": (True, "the VM moves to another machine and loses its local disks"),
    "Preempt": (True, "the spot VM is taken away"),
    "Terminate": (True, "the VM is deleted"),
}
"""learn.microsoft.com: azure/virtual-machines/linux/scheduled-events."""


def scheduled_event(n: Node, part: str) -> Outcome:
    """The platform will not interrupt the node within the time a job takes. RDMA connections survive none."""
    name, window = n.get("imds.compute").get("name"), n.expect.get("event_window_min")
    whose = [(concerns(e, name, n.facts.record.node), e) for e in n.get("imds.events")]
    mine = [e for is_mine, e in whose if is_mine]
    if not mine and any(is_mine is None for is_mine, _ in whose):
        raise Unread("imds.compute", "does not name this VM, and the events name others or this one")
    told, is_over, later = [], False, []
    for event in mine:
        kind, minutes = str(event.get("EventType", "")), _minutes_until(n, str(event.get("NotBefore", "")))
        means = EVENTS.get(kind, (True, "the platform does something to the VM"))
        when = f"in {minutes:.0f} min" if minutes > 0 else "now"
        text = f"{kind} {when} ({event.get('EventSource', 'Platform')} event {event.get('EventId', '?')}): {means[1]}"
        if minutes > window:
            later.append(text)
            continue
        told.append(text)
        is_over |= means[0] or n.expect.rdma != "none"
    data = {"events": mine, "window_min": window} if mine else {}
    if told:
        return (bad if is_over else warn)("; ".join(told), **data)
    return ok("; ".join(["nothing soon", *later]) if later else "nothing is scheduled", **data)


def _minutes_until(n: Node, text: str) -> float:
    """From when the facts were read. An event that has begun has no time any more; one that nobody can read is near."""
    try:
        return (parsedate_to_datetime(text).timestamp() - n.facts.record.taken_at_ns / 1e9) / 60
    except ValueError:
        return 0.0


def cpus(n: Node, part: str) -> Outcome:
    """All processors of the VM size are online."""
    text, expected = n.get("host.cpu.online"), n.expect.get("vcpus")
    try:
        found = count_of_ranges(text)
    except ValueError:
        raise Unread("host.cpu.online", f"`{text[:40]}` is not a list of processors") from None
    data = {"value": found, "expected": expected}
    if found == expected:
        return ok(f"{found} processors", **data)
    return (bad if found < expected else warn)(f"{found} processors, expected {expected}", **data)


def memory(n: Node, part: str) -> Outcome:
    """The memory of the VM size is there, less what kernel and firmware keep."""
    found, expected = n.get("host.memory.MemTotal") * 1024 / GIB, n.expect.get("memory_gib")
    slack = n.expect.get("memory_slack_pct") / 100
    data = {"value": round(found, 1), "expected": expected, "unit": "GiB"}
    if found < expected * (1 - slack):
        return bad(f"{found:.0f} GiB of memory, expected {expected:g}", **data)
    if found > expected * (1 + slack):
        return warn(f"{found:.0f} GiB of memory, more than the {expected:g} expected", **data)
    return ok(f"{found:.0f} GiB of memory", **data)


def swap(n: Node, part: str) -> Outcome:
    """Nothing swaps: a rank that waits for a disk stalls every other rank."""
    total, areas = n.get("host.memory.SwapTotal"), n.get("host.memory.swaps")
    if not total and not areas:
        return ok("no swap")
    return bad(f"{size_text(total * 1024)} of swap on {', '.join(areas) or 'an unnamed area'}", value=total, unit="kB")


def numa_settings(n: Node, part: str) -> Outcome:
    """The kernel neither moves pages between NUMA nodes nor reclaims before it uses the other node's memory."""
    balancing, reclaim = n.get("host.memory.numa_balancing"), n.get("host.memory.zone_reclaim_mode")
    wrong = [f"kernel.numa_balancing is {balancing}"] if balancing else []
    wrong += [f"vm.zone_reclaim_mode is {reclaim}"] if reclaim else []
    return bad(" and ".join(wrong), numa_balancing=balancing, zone_reclaim_mode=reclaim) if wrong else ok("both off")


def memlock(n: Node, part: str) -> Outcome:
    """A process may lock enough memory to register it for RDMA. The limit is the one of the probe's own session."""
    soft, least = n.get("host.limits.memlock", "soft"), n.expect.get("memlock_gib")
    if soft == "unlimited":
        return ok("unlimited", value=soft)
    data = {"value": soft, "unit": "B", "expected": least * GIB}
    if soft >= least * GIB:
        return ok(size_text(soft), **data)
    return bad(f"only {size_text(soft)} may be locked, {least:g} GiB or unlimited are needed for RDMA", **data)


def shm(n: Node, part: str) -> Outcome:
    """The file system for shared memory is in memory and large enough."""
    least = n.expect.get("shm_gib")
    if not least:
        return skip("no shared memory is asked for")
    if SHM not in n.get("mounts.local"):
        if not n.get("mounts.local"):
            raise Unread("mounts.local", "no mount is listed: the table was not read whole")
        return bad(f"{SHM} is not a file system of its own")
    kind, size = n.get("mounts.local", SHM, "fstype"), n.get("mounts.local", SHM, "size_bytes")
    if kind not in ("tmpfs", "ramfs"):
        return bad(f"{SHM} is on {kind}, not in memory", value=kind)
    data = {"value": size, "unit": "B", "expected": least * GIB}
    if size >= least * GIB:
        return ok(size_text(size), **data)
    return bad(f"{SHM} holds only {size_text(size)}, ranks of one node need {least:g} GiB", **data)


def mounts(n: Node) -> list[str]:
    """File systems whose space is judged: local ones that a job or the system writes to."""
    table = n.get("mounts.local")
    return [place for place in table if n.get("mounts.local", place, "fstype") not in READ_ONLY_BY_NATURE]


READ_ONLY_BY_NATURE = ("squashfs", "iso9660", "erofs", "udf", "cramfs", "romfs")
"""Always full, always read-only, and meant to be: snap packages, installation media."""


def remote_mounts(n: Node) -> list[str]:
    """Mounts whose server answers elsewhere."""
    return list(n.get("mounts.remote"))


def disk_space(n: Node, part: str) -> Outcome:
    """Neither space nor inodes are nearly used up."""
    limit = n.expect.get("max_disk_used_pct")
    size, avail = n.get("mounts.local", part, "size_bytes"), n.get("mounts.local", part, "avail_bytes")
    inodes, free = n.get("mounts.local", part, "inodes"), n.get("mounts.local", part, "inodes_free")
    if not size:
        return skip("it has no size of its own")
    used = 100 * (1 - avail / size)
    used_inodes = 100 * (1 - free / inodes) if inodes else 0.0
    what, worst = ("space", used) if used >= used_inodes else ("inodes", used_inodes)
    data = {"value": round(worst, 1), "unit": "%", "limit": limit}
    text = f"{part}: {worst:.0f} % of its {what} used"
    if worst >= limit:
        return bad(f"{text}, {size_text(avail)} left", **data)
    return (
        warn(f"{text}, {size_text(avail)} left", **data)
        if worst >= limit - 5
        else ok("enough space and inodes", **data)
    )


def read_only(n: Node, part: str) -> Outcome:
    """The kernel has not turned a file system read-only after an error."""
    options = n.get("mounts.local", part, "options")
    is_system = part in ("/", "/tmp", "/var", "/home", "/mnt", "/mnt/resource")  # noqa: S108
    if "ro" not in options:
        return ok("writable")
    if is_system:
        return bad(f"{part} is mounted read-only", options=options)
    return skip("a mount that may be meant to be read-only")


def remote_answers(n: Node, part: str) -> Outcome:
    """A remote mount answered within its time limit; one that did not is unknown, by its hole."""
    n.get("mounts.remote", part, "size_bytes")
    return ok("answers")


def nvme(n: Node, part: str) -> Outcome:
    """Every local NVMe disk is there. Azure's remote disks are NVMe too on newer sizes, and do not count."""
    disks, expected = n.get("nvme.disks"), n.expect.get("nvme_disks")
    local = [d for d in disks if "Accelerator" not in str(n.get("nvme.disks", d, "model"))]
    data = {"value": len(local), "expected": expected}
    if len(local) == expected:
        return ok(f"{len(local)} local NVMe disks", **data)
    return (bad if len(local) < expected else warn)(f"{len(local)} local NVMe disks, expected {expected}", **data)


UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,240}\.[a-z]{4,10}")
"""man 5 systemd.unit: the characters and the types of a unit's name."""


def failed_services(n: Node, part: str) -> Outcome:
    """Systemd reports no failed unit."""
    if n.get("services.manager") == "none":
        return skip("systemd does not run here")
    failed = n.get("services.failed")
    junk = next((name for name in failed if not UNIT.fullmatch(name)), None)
    if junk is not None:
        raise Unread("services.failed", f"`{junk[:40]}` is no unit")
    return bad(f"failed: {', '.join(failed)}", value=failed) if failed else ok("no failed unit")


def stuck_processes(n: Node, part: str) -> Outcome:
    """No program sleeps uninterruptibly, and zombies do not pile up."""
    blocked, zombies = n.get("processes.blocked"), n.get("processes.num_zombies")
    if blocked:
        names = ", ".join(f"{name} ({pid})" for pid, name in blocked[:5])
        return bad(f"blocked in the kernel: {names}", blocked=blocked)
    limit = n.expect.get("max_zombies")
    if zombies > limit:
        return bad(f"{zombies} zombie processes", value=zombies, limit=limit)
    return ok("none")


def kernel_faults(n: Node, part: str) -> Outcome:
    """The kernel has reported no fault of processor, memory or file system."""
    return judge_messages(n, "host/kernel-faults")


def tool_latency(n: Node, part: str) -> Outcome:
    """nvidia-smi answers in reasonable time; a slow one is often the first sign of a GPU in trouble."""
    took = n.get("nvidia.smi.took_s")
    limit = n.expect.get("max_nvidia_smi_s")
    data = {"value": took, "unit": "s", "limit": limit}
    return bad(f"nvidia-smi took {took:.1f} s", **data) if took > limit else ok("nvidia-smi answers at once", **data)


def clock(n: Node, part: str) -> Outcome:
    """Something keeps the clock, and says that it does."""
    chrony = n.get("clock.chrony")
    if chrony:
        offset, leap = chrony.get("offset_s", ""), chrony.get("leap", "")
        if leap == "Not synchronised":
            return bad("chrony is not synchronised", **chrony)
        try:
            far = abs(float(offset))
        except ValueError:
            raise Unread("clock.chrony.offset_s", f"`{offset}` is not a number") from None
        return (
            bad(f"the clock is {far:.3f} s off, by chrony's own measure", value=far, unit="s")
            if far > n.expect.get("max_clock_off_s")
            else ok("kept by chrony")
        )
    if n.get("services.manager") == "none":
        return skip("neither chrony nor systemd runs here: the host keeps the clock")
    synchronized = n.get("clock.timedatectl").get("NTPSynchronized")
    if synchronized is None:
        return unknown("timedatectl does not say whether the clock is kept")
    return ok("kept") if synchronized == "yes" else bad("the clock is not synchronised")
