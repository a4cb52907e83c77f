"""An image with a real engine for pods: this machine's Python, `fairlead[serve,engine]` and torch, and the shared
libraries they need, as an OCI image layout. Nothing is fetched: what the tests run with is copied into one layer.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, BinaryIO

from packaging.requirements import Requirement

import fairlead
from fairlead.serve.image import CONFIG_TYPE, INDEX_TYPE, LAYER_TYPE, LAYOUT, MANIFEST_TYPE, this_platform

PLACE = "/engine"
PYTHON = os.path.realpath(sys.executable)
WANTED = ("torch", "msgspec", "cyclopts", "transformers[serving]", "accelerate", "aiohttp", "tokenizers", "uvloop",
          "cryptography")  # fmt: skip
_LEFT_OUT = {"include", "test", "tests", "__pycache__", "ensurepip", "idlelib", "lib2to3", "site-packages"}
_NEVER = ("torch/include/", "torch/test/", "torch/bin/protoc", "torch/bin/test_")


class _Hashed:
    """What is written, digested on the way."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.size = file, hashlib.sha256(), 0

    def write(self, raw: bytes) -> int:
        self.digest.update(raw)
        self.size += len(raw)
        return self.file.write(raw)


def layout(place: Path) -> Path:
    """Write the image below `place`, as skopeo leaves one."""
    blobs = place / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    found = dict(_files())
    with (blobs / "layer").open("wb") as file:
        out = _Hashed(file)
        with tarfile.open(fileobj=out, mode="w|") as tar:  # type: ignore[call-overload]
            for folder in ("tmp", "proc", "sys", "dev", "etc", "cache"):
                entry = tarfile.TarInfo(folder)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
                tar.addfile(entry)
            for name, path in sorted((*found.items(), *_libraries(found.values()))):
                tar.add(os.path.realpath(path), name.lstrip("/"), recursive=False, filter=_as_root)
    digest = out.digest.hexdigest()
    (blobs / "layer").rename(blobs / digest)
    os_, _, arch = this_platform().partition("/")
    where = {"architecture": arch, "os": os_}
    env = ["PATH=/usr/bin:/bin", f"PYTHONPATH={PLACE}", "PYTHONDONTWRITEBYTECODE=1"]
    config = {
        **where, "config": {"Env": env, "Cmd": [PYTHON]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }  # fmt: skip
    layer = {"mediaType": LAYER_TYPE, "digest": f"sha256:{digest}", "size": out.size}
    manifest = {"schemaVersion": 2, "config": _put(blobs, CONFIG_TYPE, config), "layers": [layer]}
    named = {**_put(blobs, MANIFEST_TYPE, manifest), "platform": where}
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [named]}
    (place / "index.json").write_text(json.dumps(index))
    (place / "oci-layout").write_bytes(LAYOUT)
    return place


def _put(blobs: Path, kind: str, body: dict[str, Any]) -> dict[str, Any]:
    raw = json.dumps(body).encode()
    digest = hashlib.sha256(raw).hexdigest()
    (blobs / digest).write_bytes(raw)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(raw)}


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    return entry.replace(uid=0, gid=0, uname="", gname="", mode=entry.mode | 0o444, deep=False)


def _files() -> Iterator[tuple[str, str]]:
    """(where in the image, where here)."""
    yield PYTHON, PYTHON
    for kind in ("stdlib", "platstdlib"):
        folder = Path(sysconfig.get_path(kind, vars={"base": sys.base_prefix, "platbase": sys.base_exec_prefix}))
        yield from ((str(path), str(path)) for path in _below(folder) if path.suffix not in (".a", ".pyc"))
    home = Path(fairlead.__file__).parent
    yield from ((f"{PLACE}/fairlead/{path.relative_to(home)}", str(path)) for path in _below(home))
    for name in _needed():
        found = distribution(name)
        for file in found.files or ():
            path = Path(str(found.locate_file(file)))
            inside = str(file)
            if ".." not in inside and not inside.startswith(_NEVER) and path.is_file():
                yield f"{PLACE}/{inside}", str(path)


def _below(folder: Path) -> Iterator[Path]:
    for at, below, names in os.walk(folder):
        below[:] = [name for name in below if name not in _LEFT_OUT and not name.startswith("config-")]
        yield from (Path(at, name) for name in names)


def _needed() -> set[str]:
    """Names of the packages that `WANTED` need, and they themselves, as they are installed."""
    todo, seen = [Requirement(text) for text in WANTED], set[tuple[str, frozenset[str]]]()
    names = set[str]()
    while todo:
        one = todo.pop()
        if (one.name, frozenset(one.extras)) in seen:
            continue
        seen.add((one.name, frozenset(one.extras)))
        try:
            found = distribution(one.name)
        except PackageNotFoundError:
            continue
        names.add(found.metadata["Name"])
        for text in found.requires or ():
            more = Requirement(text)
            if more.marker is None or any(more.marker.evaluate({"extra": extra}) for extra in ("", *one.extras)):
                todo.append(more)
    return names


def _libraries(paths: Iterator[str] | Any) -> list[tuple[str, str]]:
    """Shared libraries of the system that programs and libraries need, by what the dynamic linker says."""
    objects = [path for path in paths if path == PYTHON or ".so" in Path(path).name]
    own = tuple({str(Path(path).parent) + "/" for path in objects if path != PYTHON})
    said = subprocess.run(["ldd", *objects], capture_output=True, text=True, check=False).stdout
    found = dict[str, str]()
    for line in said.splitlines():
        words = line.split()
        path = words[2] if "=>" in words and len(words) > 2 else words[0] if words and words[0].startswith("/") else ""
        if path.startswith("/") and not path.endswith(":") and not path.startswith(own):
            found[path] = path
    return sorted(found.items())
