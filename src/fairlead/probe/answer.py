"""The control side of the probe: the command that runs it, and what comes back as a record or as a captured tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from fairlead.base.files import disk_errors, write_atomic
from fairlead.base.trust import PRIVATE_DIR
from fairlead.errors import ClusterError, UsageError
from fairlead.probe.join import program
from fairlead.probe.readers.tree import Tree
from fairlead.records.border import Breach, shown
from fairlead.records.facts import DOCUMENT, SCHEMA, NodeFacts

LIMIT_S = 20.0
"""Time the probe gives itself; what has not been read by then is a hole."""

GRACE_S = 15.0
"""Time on top of it for reaching a node and starting Python there."""

KEEP_BYTES = 64 << 20
"""The largest answer that is taken whole: a captured tree, mostly."""

Kept = dict[str, str | list[str] | dict[str, str]]
"""The files a probe kept, as they came: text, bytes as {"hex": ...}, the names in a directory."""


def arguments(
    *,
    imds: bool = False,
    dcgm: bool = False,
    capture: bool = False,
    root: Path | None = None,
    limit_s: float = LIMIT_S,
) -> tuple[str, ...]:
    """The words that tell the program what to do, for `Program.words`."""
    words = ["--limit", f"{limit_s:g}", *(["--root", str(root)] if root else [])]
    flags = {"--imds": imds, "--dcgm": dcgm, "--capture": capture}
    return (*words, *(flag for flag, given in flags.items() if given))


def parse(text: str | bytes, node: str) -> NodeFacts:
    """The probe's answer as a record. Raises ClusterError where it is not one whole document of the schema we know."""
    try:
        found = DOCUMENT(text)
    except Breach as breach:
        raise ClusterError(
            "probe/bad-answer",
            f"it answered with {breach.what}",
            nodes=node,
            hint=f"fairlead exec -w {node} -- python3 -c 'import json, sys; print(sys.version)'",
        ) from None
    if found.schema != SCHEMA:
        theirs = shown(found.schema)
        raise ClusterError("probe/bad-answer", f"the facts have the schema {theirs}, not {SCHEMA}", nodes=node)
    return msgspec.structs.replace(found, node=node)


def local(root: Path | None = None, *, node: str = "", capture: bool = False, imds: bool = False) -> bytes:
    """Run the program on this machine, or on a captured tree: the same bytes a node would have sent."""
    if root is not None and not root.is_dir():
        raise UsageError("probe/no-tree", f"no captured tree at {root}", hint="fairlead probe --capture DIR makes one")
    argv = program().words(sys.executable, arguments(imds=imds, capture=capture, root=root))
    try:
        done = subprocess.run(argv, input=program().stdin, capture_output=True, timeout=LIMIT_S + GRACE_S, check=False)
    except subprocess.TimeoutExpired:
        raise ClusterError("probe/bad-answer", f"no answer within {LIMIT_S + GRACE_S:g} s", nodes=node) from None
    if done.returncode or not done.stdout:
        tail = done.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
        raise ClusterError("probe/bad-answer", f"the probe ended with status {done.returncode}: {tail}", nodes=node)
    return done.stdout


# ---- captured trees --------------------------------------------------------------------------------------------------


def split_capture(text: str | bytes) -> tuple[bytes, Kept]:
    """An answer that carries a tree, as the answer without it and the tree."""
    try:
        document = json.loads(text)
        tree = msgspec.convert(document.pop("tree"), Kept)
        for path, data in tree.items():
            for name in (path, *data) if isinstance(data, list) else (path,):
                os.fsencode(name)
            _bytes(data)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise ClusterError("probe/bad-answer", "the answer carries no captured tree") from None
    return json.dumps(document).encode(), tree


def write_tree(kept: Kept, root: Path) -> int:
    """Write what a probe kept as a captured tree below `root`; returns the number of files. Never writes outside of it.

    Keys: a path is a file, `path/` a directory with its names, `path@` a link with its target, `!name` an absence,
    `?path` a refusal with its reason.
    Raises DiskFull or NotPermitted.
    """
    with disk_errors(root):
        return _write_tree(kept, root)


def _write_tree(kept: Kept, root: Path) -> int:
    root.parent.mkdir(parents=True, exist_ok=True)
    root.mkdir(exist_ok=True, mode=PRIVATE_DIR)
    place = Tree(str(root))
    links = {k[:-1]: str(v) for k, v in kept.items() if k.endswith("@")}
    files = {k: v for k, v in kept.items() if k.startswith("/") and not k.endswith(("/", "@"))}
    listed = [(k, v) for k, v in kept.items() if k.startswith("/") and k.endswith("/")]
    for path, target in sorted(links.items()):
        here = _inside(place, root, path)
        if here is not None and not here.is_symlink() and not here.exists() and "\0" not in target:
            here.symlink_to(target)
    place = Tree(str(root))
    num = 0
    for path, data in files.items():
        here = _inside(place, root, path)
        if here is not None and here.is_symlink():
            # the node read this file through a link; here the link may lead out of the tree
            here = _inside(place, root, _real(place, path))
        if here is not None and not here.is_symlink() and not here.is_dir():
            here.write_bytes(_bytes(data))
            num += 1
    # deepest first: a name in a listing may itself be a listed directory
    for path, names in sorted(listed, key=lambda item: -item[0].count("/")):
        _inside(place, root, path + "any")
        for name in names:
            here = _inside(place, root, path + name)
            if here is not None and not here.exists() and not here.is_symlink():
                here.touch()
    absences = sorted(k[1:] for k in kept if k.startswith("!"))
    write_atomic(root / "absent", "\n".join(absences) + "\n")  # a link of this name is replaced, not followed
    refusals = sorted(f"{k[1:]}\t{v}" for k, v in kept.items() if k.startswith("?"))
    if refusals:
        write_atomic(root / "refused", "\n".join(refusals) + "\n")
    return num


def _real(place: Tree, path: str) -> str:
    """A path with every link followed inside the tree; nothing where they go in circles."""
    try:
        return place.real_path(path)
    except OSError:
        return ""


def _inside(place: Tree, root: Path, path: str) -> Path | None:
    """Where a path of the machine goes, its directories made; None where something else already stands in the way."""
    folder, _, name = path.rpartition("/")
    if not name or name in (".", "..") or "\0" in path:
        return None
    real = _real(place, folder) if folder else "/"
    if not real:
        return None
    here = Path(place.root + real)
    try:
        here.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        return None
    return here / name


def _bytes(data: str | list[str] | dict[str, str]) -> bytes:
    return bytes.fromhex(data["hex"]) if isinstance(data, dict) else str(data).encode()
