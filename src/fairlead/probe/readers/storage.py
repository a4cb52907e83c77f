"""Mounts with their free space and inodes, and local NVMe disks. Each remote mount is asked in a child of its own."""

from __future__ import annotations

import re
from typing import Any

from fairlead.probe.readers.tree import Absent, Hole, Tree, hole, number, read_or_hole, safe_name

MOUNTINFO = "/proc/self/mountinfo"

REMOTE = ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "beegfs", "gpfs", "9p", "afs", "glusterfs", "fuse")
"""A server that went away makes these hang. Every fuse file system counts: blobfuse, sshfs and their like."""

HELD = ("/", "/dev/shm", "/tmp")  # noqa: S108 - places to look at, not to write to
"""Looked at whatever file system they are on; others only if they are on a device."""

FORMAT = "%S:%b:%a:%c:%d:%n"
"""stat -f: block size, blocks, blocks free to users, inodes, inodes free, name."""


def _mount_table(tree: Tree) -> list[tuple[str, str, str, list[str]]]:
    """(device, mount point, type, options) of /proc/self/mounts; a later mount hides an earlier one there."""
    found, hidden = {}, hidden_mounts(tree)
    for row in tree.table("/proc/self/mounts", 4, 4 << 20):
        words = [_plain(w) for w in row]
        if words[1] not in hidden:
            found[words[1]] = (words[0], words[1], words[2], words[3].split(","))
    return list(found.values())


def _plain(word: str) -> str:
    """A word of a mount table without its octal escapes (proc(5): space, tab, newline, backslash)."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), word)


def hidden_mounts(tree: Tree) -> set[str]:
    """Mount points no path leads to, as something is mounted over one of their parents. None where none are told.

    proc(5), mountinfo: a mount's own number, that of the mount it stands in, major:minor, root, mount point.
    """
    try:
        rows = [(row[0], row[1], _plain(row[4])) for row in tree.table(MOUNTINFO, 6, 4 << 20)]
    except (Absent, Hole):
        return set()
    inside: dict[str, list[tuple[str, str]]] = {}
    for ident, parent, point in rows:
        inside.setdefault(parent, []).append((ident, point))
    parents = {ident: parent for ident, parent, _ in rows}
    shown: set[str] = set()
    covered: set[str] = set()
    for ident, _, point in rows:
        (covered if _is_covered(ident, point, parents, inside) else shown).add(point)
    return covered - shown


def _is_covered(ident: str, point: str, parents: dict[str, str], inside: dict[str, list[tuple[str, str]]]) -> bool:
    """Whether a mount in one that holds this one, or in this one itself, stands at the point or above it."""
    way = [ident]
    while (parent := parents.get(way[-1])) is not None and parent not in way:
        way.append(parent)
    return any(
        other not in way and (point + "/").startswith(place.rstrip("/") + "/")
        for holder in way
        for other, place in inside.get(holder, ())
    )


def _is_remote(kind: str) -> bool:
    return kind.split(".", maxsplit=1)[0] in REMOTE and kind != "fusectl"


def remote_mounts(tree: Tree) -> list[str]:
    """Mount points whose server may not answer."""
    tree.source((), "/proc/self/mounts")
    return [safe_name(place) for _, place, kind, _ in _mount_table(tree) if _is_remote(kind)]


def read_remote_mount(tree: Tree, place: str) -> dict[str, Any]:
    """One remote mount."""
    found: dict[str, Any] = _mounts(tree, [entry for entry in _mount_table(tree) if entry[1] == place])[place]
    return found


def read_mounts(tree: Tree) -> dict[str, Any]:
    """Local mounts: point -> device, type, options, sizes in bytes."""
    tree.source((), "/proc/self/mounts")
    table = _mount_table(tree)
    local = [e for e in table if not _is_remote(e[2]) and (e[1] in HELD or e[0].startswith("/dev/"))]
    return _mounts(tree, local[:128])


def _mounts(tree: Tree, table: list[tuple[str, str, str, list[str]]]) -> dict[str, Any]:
    argv = ["stat", "-f", "-c", FORMAT, *sorted(entry[1] for entry in table)]
    sizes: Any = read_or_hole(lambda: _sizes(tree.run(argv, 4.0, fine=(0, 1)))) if table else {}
    found = {}
    for device, place, kind, options in table:
        missing = sizes if "unread" in sizes else hole("stat did not answer for it", "stat -f " + place)
        entry: dict[str, Any] = {"device": device, "fstype": kind, "options": options}
        keys = (safe_name(place),)
        for name in ("size_bytes", "avail_bytes", "inodes", "inodes_free"):
            entry[name] = sizes[place][name] if place in sizes else missing
            tree.source((*keys, name), " ".join(argv))
        found[safe_name(place)] = entry
    return found


def _sizes(text: str) -> dict[str, dict[str, int]]:
    found = {}
    for line in text.split("\n"):
        words = line.split(":", 5)
        if len(words) == 6 and all(w.isascii() and w.isdigit() and len(w) < 20 for w in words[:5]):
            block, blocks, avail, inodes, inodes_free = (int(w) for w in words[:5])
            found[words[5]] = {
                "size_bytes": block * blocks,
                "avail_bytes": block * avail,
                "inodes": inodes,
                "inodes_free": inodes_free,
            }
    return found


def read_nvme(tree: Tree) -> dict[str, Any]:
    """NVMe controllers: model, and the size of their first namespace."""
    tree.source(("disks",), "/sys/class/nvme/")
    return {"disks": {safe_name(n): _nvme(tree, n) for n in tree.optional_names("/sys/class/nvme")}}


def _nvme(tree: Tree, name: str) -> dict[str, Any]:
    base, size = "/sys/class/nvme/" + name, "/sys/block/" + name + "n1/size"
    tree.source(("disks", name, "size_bytes"), size)
    try:
        sectors = number(tree.read(size).strip(), size)
    except Absent:
        sectors = 0
    except Hole as missing:
        sectors = hole(missing.why, missing.source)
    return {
        "model": tree.attr(base + "/model"),
        "state": tree.attr(base + "/state"),
        # the kernel counts sectors of 512 bytes here, whatever the disk's own sector size
        "size_bytes": sectors * 512 if isinstance(sectors, int) else sectors,
    }
