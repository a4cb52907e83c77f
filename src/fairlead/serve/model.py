"""A folder as a model: which files belong to it, and why it would not be served.

Reading and judging are apart: `look` reads names, sizes and the beginnings of files; `refuse` raises for what it saw.
Must not know bundles.

What a model folder holds: huggingface.co/docs/transformers, "Models" and "Tokenizers"; a licence stands in the head of
the model's card (huggingface.co/docs/hub/model-cards, "Model card metadata").
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fairlead.base.tensors import odd
from fairlead.base.trust import read_file
from fairlead.base.units import counted
from fairlead.errors import Exit, FairleadError, UsageError

MAX_FILES = 10_000
MAX_CARD_BYTES = 4 << 20
WEIGHTS = (".safetensors", ".gguf")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")
NOASSERTION = "NOASSERTION"
"""What SPDX writes for a licence that nobody named."""

_LICENCE = re.compile(r"^license:[ \t]*[\"']?([A-Za-z0-9.+-]{1,64})[\"']?[ \t]*(?:#.*)?\r?$", re.MULTILINE)
_HEAD = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.MULTILINE | re.DOTALL)


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a model as it was found."""

    path: str
    """Below the model, with `/`."""
    size: int
    mtime_ns: int


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder holds."""

    files: tuple[ModelFile, ...]
    """By path."""
    links: tuple[str, ...] = ()
    """Links that lead out of the folder, and links to folders."""
    others: tuple[str, ...] = ()
    """Pipes, sockets, devices."""
    pickles: tuple[str, ...] = ()
    """Files whose loading runs code."""
    damaged: tuple[tuple[str, str], ...] = ()
    """(file, why a loader would refuse it)."""
    licence: str = NOASSERTION
    """As the card's head writes it: `apache-2.0`."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(f.size for f in self.files)


def look(folder: Path) -> Model:
    """What a folder holds; hidden files and folders are not part of a model. Raises UsageError where there is none."""
    if not folder.is_dir():
        raise UsageError("serve/no-model", f"{folder} is not a folder", hint="fairlead weights pull SOURCE FOLDER")
    root = folder.resolve()
    files, links, others = list[ModelFile](), list[str](), list[str]()
    for place, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith("."))
        links += [_below(root, Path(place, name)) for name in below if Path(place, name).is_symlink()]
        for name in names:
            path = Path(place, name)
            if name.startswith("."):
                continue
            if path.is_symlink() and not _leads_inside(path, root):
                links.append(_below(root, path))
                continue
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                others.append(_below(root, path))
                continue
            if not _below(root, path).isprintable():
                text = f"a file in {folder} has a name that no manifest can hold: {_below(root, path)!a}"
                raise _no("serve/name", text, "rename it")
            files.append(ModelFile(path=_below(root, path), size=found.st_size, mtime_ns=found.st_mtime_ns))
            if len(files) > MAX_FILES:
                text = f"{folder} has more than {MAX_FILES} files"
                raise UsageError("serve/no-model", text, hint="name the folder of the model itself")
    files.sort(key=lambda f: f.path)
    paths = {f.path for f in files}
    return Model(
        files=tuple(files),
        links=tuple(sorted(links)),
        others=tuple(sorted(others)),
        pickles=tuple(f.path for f in files if _is_pickle(root, f)),
        damaged=tuple((f.path, why) for f in files if (why := _damage(root, f, paths))),
        licence=licence_of(_card(root)) if "README.md" in paths else NOASSERTION,
    )


def refuse(model: Model, folder: Path, *, allow_pickle: bool = False) -> None:
    """Raise FairleadError for the first thing that keeps a model from being bundled. Pure."""
    names = {f.path.rpartition("/")[2] for f in model.files}
    if model.links:
        raise _no(
            "serve/link-out",
            f"{_few(model.links)} in {folder} leads out of the model, or to a folder",
            f"make a copy with the files themselves: cp -rL {folder} COPY; then bundle that",
        )
    if model.others:
        raise _no("serve/not-a-file", f"{_few(model.others)} in {folder} is no regular file", "remove it")
    if model.pickles and not allow_pickle:
        raise _no(
            "serve/pickle",
            f"{_few(model.pickles)} in {folder} can run code when it is loaded",
            "take the model's safetensors; if you trust who made them: --allow-pickle",
        )
    if not any(name.endswith((*WEIGHTS, *(PICKLES if allow_pickle else ()))) for name in names):
        raise _no("serve/no-weights", f"{folder} has no weights: no {' or '.join(WEIGHTS)}", "name the model's folder")
    if model.damaged:
        path, why = model.damaged[0]
        raise _no("serve/damaged", f"{path} in {folder} cannot be loaded: {why}", "fetch it again")
    if any(name.endswith(".gguf") for name in names):
        return  # it holds its settings and its tokenizer itself
    if "config.json" not in names:
        raise _no("serve/no-config", f"{folder} has no config.json", "fetch the model's *.json files too")
    if not any(name in TOKENIZERS or name.endswith(".tiktoken") for name in names):
        raise _no(
            "serve/no-tokenizer",
            f"{folder} has no tokenizer: none of {', '.join(TOKENIZERS)}",
            "fetch it with the model; without it a server asks the hub when it starts",
        )


def licence_of(card: str) -> str:
    r"""The licence in the head of a model card.

    >>> licence_of("---\nlicense: apache-2.0\ntags: [x]\n---\n# A model"), licence_of("# A model")
    ('apache-2.0', 'NOASSERTION')
    """
    head = _HEAD.match(card)
    found = _LICENCE.search(head[1]) if head else None
    return found[1] if found else NOASSERTION


def _card(root: Path) -> str:
    try:
        return read_file(root / "README.md", MAX_CARD_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _is_pickle(root: Path, file: ModelFile) -> bool:
    """By its name, or by its first byte, where protocol 2 and newer say so (docs.python.org, pickletools)."""
    if file.path.endswith(WEIGHTS):
        return False
    with (root / file.path).open("rb") as data:
        first = data.read(4)
    return file.path.endswith(PICKLES) or (first[:1] == b"\x80" and first[1:2] in b"\x02\x03\x04\x05" and file.size > 2)


def _damage(root: Path, file: ModelFile, paths: set[str]) -> str:
    with (root / file.path).open("rb", buffering=0) as data:

        def read(offset: int, length: int) -> bytes:
            return os.pread(data.fileno(), length, offset)

        if file.path.endswith(".gguf"):
            return "" if read(0, 4) == b"GGUF" else "it does not begin as GGUF does"
        return odd(file.path, file.size, read, paths)


def _leads_inside(path: Path, root: Path) -> bool:
    target = path.resolve()
    return target.is_relative_to(root) and target.is_file()


def _below(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _few(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {counted(len(names) - 1, 'other file')}"


def _no(code: str, message: str, hint: str) -> FairleadError:
    return FairleadError(code, message, hint=hint, exit=Exit.USAGE)
