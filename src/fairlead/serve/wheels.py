"""A folder of wheels as a runtime: the engine that a closed site installs, without an index of packages.

`look_wheels` reads names and metadata, `refuse_wheels` raises for what it saw; the second is pure. What belongs into a
name: packaging.python.org, "Binary distribution format"; into METADATA: "Core metadata specifications". `pip download
--only-binary :all: -d FOLDER ...` makes such a folder.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from email.parser import BytesHeaderParser
from pathlib import Path

import msgspec

from fairlead.base.units import counted
from fairlead.errors import Exit, FairleadError
from fairlead.serve.model import ModelFile

MAX_WHEELS = 2000
_MAX_METADATA_BYTES = 4 << 20
_MACHINES = {"amd64": ("x86_64",), "arm64": ("aarch64",)}
"""What wheels call an architecture of OCI; others have one name for both."""


class Wheel(msgspec.Struct, frozen=True, kw_only=True):
    """One wheel as it was found."""

    file: ModelFile
    name: str
    """Normalized, as indexes write it."""
    version: str
    tags: tuple[str, ...]
    """`cp311-cp311-manylinux_2_28_x86_64`; several where it fits several."""
    licence: str = ""
    """An SPDX expression, where it names one (PEP 639)."""
    needs: tuple[str, ...] = ()
    """Its requirements, as METADATA writes them."""


class Wheels(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder holds."""

    wheels: tuple[Wheel, ...] = ()
    others: tuple[str, ...] = ()
    """What is no wheel: archives of source among it."""
    damaged: tuple[tuple[str, str], ...] = ()
    """(file, why pip would refuse it)."""


def look_wheels(folder: Path) -> Wheels:
    """What lies there, one level deep; hidden files are left aside. Raises FairleadError where there is no folder."""
    from packaging.utils import InvalidWheelFilename

    if not folder.is_dir():
        raise _no(f"{folder} is not a folder", "pip download --only-binary :all: -d FOLDER 'transformers[serving]'")
    wheels, others, damaged = list[Wheel](), list[str](), list[tuple[str, str]]()
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_symlink() or not path.is_file() or path.suffix != ".whl" or not path.name.isprintable():
            others.append(path.name)
        elif len(wheels) == MAX_WHEELS:
            raise _no(f"{folder} has more than {MAX_WHEELS} wheels", "name the folder of one engine's wheels")
        else:
            try:
                wheels.append(_read(path))
            except (InvalidWheelFilename, zipfile.BadZipFile, OSError, ValueError, LookupError) as error:
                damaged.append((path.name, str(error)))
    return Wheels(wheels=tuple(wheels), others=tuple(others), damaged=tuple(damaged))


def refuse_wheels(found: Wheels, folder: Path, platform: str) -> None:
    """Raise FairleadError for the first thing that keeps these wheels from being installed on a site without a way
    out: on `platform`, by this version of Python. Pure but for the markers' environment.
    """
    again = f"pip download --only-binary :all: -d {folder} ..."
    if found.others:
        raise _no(f"{found.others[0]} in {folder} is no wheel: building one there would need what is not there", again)
    if found.damaged:
        name, why = found.damaged[0]
        raise _no(f"{name} in {folder} cannot be installed: {why}", again)
    if not found.wheels:
        raise _no(f"{folder} has no wheels", again)
    for wheel in found.wheels:
        if not any(_fits(tag, platform) for tag in wheel.tags):
            text = f"{wheel.file.path} is for other machines than {platform}"
            raise _no(text, "--platform, or download for that one: pip download --platform")
    if missing := lacking(found.wheels):
        more = f", and {counted(len(missing) - 1, 'requirement')} more" if len(missing) > 1 else ""
        raise _no(f"{missing[0]}, which is not among the wheels{more}", again)


def lacking(wheels: Sequence[Wheel]) -> list[str]:
    """`X needs Y`, for each requirement that no wheel fulfils, in the environment of this Python (PEP 508)."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    there = {wheel.name: wheel.version for wheel in wheels}
    needs = {wheel.name: [Requirement(text) for text in wheel.needs] for wheel in wheels}
    missing = list[str]()
    seen = set[tuple[str, str]]()
    todo = [(name, "") for name in needs]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for need in needs[name]:
            if need.marker is not None and not need.marker.evaluate({"extra": extra}):
                continue
            other = canonicalize_name(need.name)
            if other not in there or not need.specifier.contains(there[other], prereleases=True):
                missing.append(f"{name} needs {str(need).partition(';')[0].strip()}")
            else:
                todo += [(other, more) for more in need.extras]
    return sorted(set(missing))


def is_for_one_platform(wheels: Sequence[Wheel]) -> bool:
    """Whether some of them run on one kind of machine alone."""
    return any(not tag.endswith("-any") for wheel in wheels for tag in wheel.tags)


def _fits(tag: str, platform: str) -> bool:
    """Whether a wheel's tag is of a platform of OCI.

    >>> [_fits(t, "linux/amd64") for t in ("py3-none-any", "cp311-cp311-manylinux_2_28_x86_64", "cp311-abi3-win_amd64")]
    [True, True, False]
    """
    where = tag.rpartition("-")[2]
    os_, _, arch = platform.partition("/")
    return where == "any" or ("linux" in where and os_ == "linux" and where.endswith(_MACHINES.get(arch, (arch,))))


def _read(path: Path) -> Wheel:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name, parse_wheel_filename

    name, version, _, tags = parse_wheel_filename(path.name)
    with zipfile.ZipFile(path) as archive:
        (inside,) = [one for one in archive.namelist() if one.count("/") == 1 and one.endswith(".dist-info/METADATA")]
        if archive.getinfo(inside).file_size > _MAX_METADATA_BYTES:
            raise ValueError("its METADATA is larger than any")
        head = BytesHeaderParser().parsebytes(archive.read(inside))
    if canonicalize_name(str(head.get("Name", ""))) != name or head.get("Version") is None:
        raise ValueError(f"its METADATA is that of {head.get('Name', 'nobody')!a}")
    needs = tuple(map(str, head.get_all("Requires-Dist") or ()))
    try:
        for text in needs:
            Requirement(text)
    except InvalidRequirement as error:
        raise ValueError(f"a requirement does not read: {error}") from None
    found = path.stat()
    return Wheel(
        file=ModelFile(path=path.name, size=found.st_size, mtime_ns=found.st_mtime_ns),
        name=name,
        version=str(version),
        tags=tuple(sorted(map(str, tags))),
        licence=str(head.get("License-Expression", "")),
        needs=needs,
    )


def _no(message: str, hint: str) -> FairleadError:
    return FairleadError("serve/wheels", message, hint=hint, exit=Exit.USAGE)
