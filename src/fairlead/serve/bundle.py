"""Writing a bundle: planned first, poured into a folder beside its destination, named when it is whole.

    .NAME.partial/state.json   what is poured already: a later run goes on from there
    .NAME.partial/bundle/      becomes DEST by one rename

What is poured is on the disk before the state says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from fairlead.base.files import disk_errors, write_atomic
from fairlead.base.units import size as shown_size
from fairlead.errors import DiskFull, FairleadError, UsageError
from fairlead.records.stagestate import StageState
from fairlead.serve.image import (
    CONFIG_TYPE,
    LAYER_TYPE,
    LAYOUT,
    MANIFEST_TYPE,
    MAX_LAYERS,
    Base,
    Descriptor,
    blob,
    config_of,
    described,
    index_of,
    manifest_of,
)
from fairlead.serve.model import NOASSERTION, WEIGHTS, Model, ModelFile
from fairlead.serve.pour import layer_size, pour_file, pour_layer
from fairlead.serve.record import MANIFEST, SBOM, SIGNATURE, WHEELS, Bundle, Held, Stored, sign
from fairlead.serve.sbom import image_name, sbom, spdx_of
from fairlead.serve.wheels import Wheel, is_for_one_platform

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Said = Callable[[int], None]
_STATE = "fairlead.serve-bundle-state/1"
_SPARE_BYTES = 16 << 20
"""For the documents of a bundle, beside its layers."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What is poured at once: the files of a layer, or one file of a folder."""

    files: tuple[ModelFile, ...]
    size: int
    source: str = ""
    """Where they are, if not in the plan's source."""
    at: str = ""
    """Where they go, if not to the plan's place."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a bundle will consist of."""

    source: str
    dest: str
    name: str
    form: Literal["oci", "directory"]
    platform: str
    at: str
    licence: str
    parts: tuple[Part, ...]
    base_bytes: int = 0
    wheels: tuple[Wheel, ...] = ()
    """Of the engine; the last parts are theirs."""

    @property
    def size(self) -> int:
        """Bytes it takes on the disk, documents aside."""
        return sum(part.size for part in self.parts) + self.base_bytes


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A part that is on the disk."""

    digest: str
    size: int
    sha256: tuple[str, ...]


class State(msgspec.Struct, kw_only=True):
    """What was poured: by what was read."""

    done: dict[str, Done] = {}


def refuse_existing(dest: Path) -> None:
    """Raises UsageError where DEST is there already."""
    if dest.is_symlink() or (dest.exists() and (not dest.is_dir() or any(dest.iterdir()))):
        raise UsageError("serve/exists", f"{dest} is there already", hint="name another place, or remove it")


def planned(
    model: Model,
    source: Path,
    dest: Path,
    *,
    form: Literal["oci", "directory"],
    name: str = "",
    platform: str,
    base: Base | None = None,
    wheels: tuple[Path, Sequence[Wheel]] | None = None,
) -> Plan:
    """How a model is cut: each file of weights by itself, all others together; fewer layers where an image takes
    no more. `wheels`, a folder and what was found in it, go into a folder of their own.

    Raises UsageError where DEST is there already.
    """
    refuse_existing(dest)
    name = name or source.resolve().name
    if form == "directory":
        parts = [Part(files=(f,), size=f.size) for f in model.files]
        folder, found = wheels or (source, ())
        parts += [
            Part(files=(wheel.file,), size=wheel.file.size, source=str(folder.resolve()), at=WHEELS) for wheel in found
        ]
        return Plan(
            source=str(source.resolve()), dest=str(dest.absolute()), name=name, form=form, at="model",
            platform=platform if is_for_one_platform(found) else "any", licence=model.licence, parts=tuple(parts),
            wheels=tuple(found),
        )  # fmt: skip
    assert wheels is None, "an image has its runtime below it"
    at = f"models/{image_name(name)}"
    below = len(base.layers) if base else 0
    if below > MAX_LAYERS - 2:
        raise UsageError("serve/base", f"the base image has {below} layers, and an image at most {MAX_LAYERS}")
    groups = _groups(model.files, MAX_LAYERS - below)
    return Plan(
        source=str(source.resolve()), dest=str(dest.absolute()), name=name, form=form, platform=platform, at=at,
        licence=model.licence, parts=tuple(Part(files=tuple(g), size=layer_size(g, at)) for g in groups),
        base_bytes=sum(layer.size for layer in base.layers) if base else 0,
    )  # fmt: skip


def _groups(files: Sequence[ModelFile], most: int) -> list[list[ModelFile]]:
    """Small files first, in one layer; then the weights, a layer each, or as few together as `most` layers allow."""
    small = [f for f in files if not _is_weight(f)]
    large = [f for f in files if _is_weight(f)]
    each = -(-len(large) // (most - 1))
    shards = [large[i : i + each] for i in range(0, len(large), each)] if large else []
    return [g for g in (small, *shards) if g]


def _is_weight(file: ModelFile) -> bool:
    return file.path.endswith(WEIGHTS) or file.size >= 64 << 20


def make(
    plan: Plan, *, base: Base | None = None, key: Ed25519PrivateKey | None = None, said: Said = lambda _num: None
) -> Bundle:
    """Write the bundle that was planned, or go on with it. Nothing stands at its place before it is whole.

    Raises DiskFull, NotPermitted, RunError where another run writes it, and FairleadError for a file that changes.
    """
    dest = Path(plan.dest)
    stage = dest.with_name(f".{dest.name}.partial")
    state = StageState(stage / "state.json", State, schema=_STATE)
    with disk_errors(dest):
        dest.parent.mkdir(parents=True, exist_ok=True)
    with state.turn(), disk_errors(dest):
        coming = stage / "bundle"
        coming.mkdir(exist_ok=True)
        known = state.read() or State()
        _room_for(plan, known, coming)
        writer = _image if plan.form == "oci" else _folder
        bundle = writer(plan, base, coming, _Pourer(plan, coming, state, known, said))
        raw = msgspec.json.format(msgspec.json.encode(bundle), indent=2) + b"\n"
        write_atomic(coming / MANIFEST, raw)
        if key is not None:
            write_atomic(coming / SIGNATURE, sign(raw, key))
        else:
            (coming / SIGNATURE).unlink(missing_ok=True)
        _only({stored.path for stored in bundle.stored} | {MANIFEST, SIGNATURE}, coming)
        for folder in (*(Path(place) for place, _, _ in os.walk(coming)),):
            _sync(folder)
        coming.rename(dest)
        _sync(dest.parent)
        shutil.rmtree(stage)
    return bundle


class _Pourer:
    """Parts into the stage, unless an earlier run did it."""

    def __init__(self, plan: Plan, coming: Path, state: StageState[State], known: State, said: Said) -> None:
        self.plan, self.coming, self.said = plan, coming, said
        self._state, self._known = state, known

    def part(self, part: Part) -> Done:
        """Pour one part, or find it poured."""
        key = key_of(self.plan, part)
        done = self._known.done.get(key)
        if done is not None and _is_there(self.coming, self.plan, part, done):
            self.said(sum(f.size for f in part.files))
            return done
        root = Path(part.source or self.plan.source)
        if self.plan.form == "directory":
            (file,) = part.files
            digest = pour_file(self.coming / (part.at or self.plan.at) / file.path, root, file, self.said)
            done = Done(digest=f"sha256:{digest}", size=file.size, sha256=(digest,))
        else:
            half = self.coming / "pouring"
            poured = pour_layer(half, root, part.files, self.plan.at, self.said)
            half.rename(blob(self.coming, poured.digest))
            _sync(self.coming / "blobs" / "sha256")
            done = Done(digest=poured.digest, size=poured.size, sha256=poured.sha256)
        self._known.done[key] = done
        self._state.write(self._known)
        return done


def key_of(plan: Plan, part: Part) -> str:
    """What a part was made from: another size or time of a file makes it another part."""
    place = (part.source or plan.source, plan.form, part.at or plan.at)
    said = repr((*place, [(f.path, f.size, f.mtime_ns) for f in part.files]))
    return hashlib.sha256(said.encode()).hexdigest()


def _is_there(coming: Path, plan: Plan, part: Part, done: Done) -> bool:
    place = blob(coming, done.digest) if plan.form == "oci" else coming / (part.at or plan.at) / part.files[0].path
    return place.is_file() and not place.is_symlink() and place.stat().st_size == done.size


def _room_for(plan: Plan, known: State, coming: Path) -> None:
    """Raise DiskFull now rather than an hour later."""
    there = sum(done.size for part in plan.parts if (done := known.done.get(key_of(plan, part))))
    needed = plan.size - there + _SPARE_BYTES
    free = shutil.disk_usage(coming).free
    if free < needed:
        text = f"{plan.dest} needs {shown_size(needed)} more, and {shown_size(free)} are free"
        raise DiskFull("disk/full", text, hint=f"free some space there: df -h {coming.parent}")


def _folder(plan: Plan, base: Base | None, coming: Path, pour: _Pourer) -> Bundle:
    held, stored = list[Held](), list[Stored]()
    for part in plan.parts:
        (file,) = part.files
        done = pour.part(part)
        if not part.at:
            held.append(Held(path=file.path, size=file.size, sha256=done.sha256[0]))
        place = f"{part.at or plan.at}/{file.path}"
        stored.append(Stored(path=place, size=file.size, sha256=done.sha256[0]))
    digests = {one.path: one.sha256 for one in stored}
    stored.append(_put(coming, SBOM, _sbom_bytes(plan, held, "", digests)))
    return _bundle(plan, held, stored)


def _image(plan: Plan, base: Base | None, coming: Path, pour: _Pourer) -> Bundle:
    (coming / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    held, stored, layers = list[Held](), dict[str, Stored](), list[Descriptor]()
    for layer in base.layers if base else ():
        _copy_blob(base, layer, coming, pour.said)
        stored[layer.digest] = _stored(layer)
    for part in plan.parts:
        done = pour.part(part)
        layers.append(Descriptor(media_type=LAYER_TYPE, digest=done.digest, size=done.size))
        stored[done.digest] = _stored(layers[-1])
        held += [
            Held(path=f.path, size=f.size, sha256=digest, layer=done.digest)
            for f, digest in zip(part.files, done.sha256, strict=True)
        ]
    labels = {"org.opencontainers.image.title": plan.name}
    if plan.licence != NOASSERTION:
        labels["org.opencontainers.image.licenses"] = spdx_of(plan.licence) or f"LicenseRef-{plan.licence}"
    raw = config_of(base, [layer.digest for layer in layers], platform=plan.platform, labels=labels)
    config = described(CONFIG_TYPE, raw)
    manifest_raw = manifest_of(config, [*(base.layers if base else ()), *layers], labels)
    os_, _, arch = plan.platform.partition("/")
    manifest = described(
        MANIFEST_TYPE, manifest_raw, platform={"architecture": arch, "os": os_},
        annotations={"org.opencontainers.image.ref.name": "latest"},
    )  # fmt: skip
    more = [
        _put(coming, _blob_name(config), raw),
        _put(coming, _blob_name(manifest), manifest_raw),
        _put(coming, "index.json", index_of(manifest)),
        _put(coming, "oci-layout", LAYOUT),
        _put(coming, SBOM, _sbom_bytes(plan, held, base.digest if base else "")),
    ]
    bundle = _bundle(plan, held, [*stored.values(), *more])
    return msgspec.structs.replace(bundle, image=manifest.digest, base=base.digest if base else "")


def _bundle(plan: Plan, held: Sequence[Held], stored: Sequence[Stored]) -> Bundle:
    return Bundle(
        name=plan.name, form=plan.form, platform=plan.platform, licence=plan.licence, at=plan.at,
        files=tuple(sorted(held, key=lambda h: h.path)), stored=tuple(sorted(stored, key=lambda s: s.path)),
        wheels=tuple(wheel.file.path for wheel in plan.wheels),
    )  # fmt: skip


def _sbom_bytes(plan: Plan, held: Sequence[Held], base: str, digests: Mapping[str, str] | None = None) -> bytes:
    wheels = [(wheel, (digests or {})[f"{WHEELS}/{wheel.file.path}"]) for wheel in plan.wheels]
    made = sbom(plan.name, plan.licence, sorted(held, key=lambda h: h.path), base=base, wheels=wheels)
    return msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n"


def _copy_blob(base: Base | None, layer: Descriptor, coming: Path, said: Said) -> None:
    """A layer of the base image, looked at on the way; one that is there was looked at when it came."""
    assert base is not None
    place, source = blob(coming, layer.digest), blob(base.folder, layer.digest)
    if place.is_file() and place.stat().st_size == layer.size:
        said(layer.size)
        return
    half = coming / "pouring"
    found = source.stat() if source.is_file() else None
    if found is None or found.st_size != layer.size:
        text = f"the base image in {base.folder} lacks the layer {layer.digest}, or a part of it"
        raise UsageError("serve/base", text, hint="copy the image again")
    file = ModelFile(path=source.name, size=found.st_size, mtime_ns=found.st_mtime_ns)
    if f"sha256:{pour_file(half, source.parent, file, said)}" != layer.digest:
        text = f"the layer {layer.digest} of the base image in {base.folder} holds other bytes"
        raise FairleadError("serve/base", text, hint="copy the image again")
    half.rename(place)


def _blob_name(descriptor: Descriptor) -> str:
    return f"blobs/sha256/{descriptor.digest.removeprefix('sha256:')}"


def _stored(layer: Descriptor) -> Stored:
    return Stored(path=_blob_name(layer), size=layer.size, sha256=layer.digest.removeprefix("sha256:"))


def _put(coming: Path, name: str, raw: bytes) -> Stored:
    write_atomic(coming / name, raw)
    return Stored(path=name, size=len(raw), sha256=hashlib.sha256(raw).hexdigest())


def _only(wanted: set[str], coming: Path) -> None:
    """Remove what a run before left and this one does not need."""
    for path in _files_below(coming):
        if path.relative_to(coming).as_posix() not in wanted:
            path.unlink()
    for place, _, _ in [*os.walk(coming, topdown=False)]:
        with contextlib.suppress(OSError):  # not empty
            Path(place).rmdir()


def _files_below(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
