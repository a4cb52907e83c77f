"""Taking names out of a run before it is shown to strangers: the same stand-in for the same name, so it still reads.

What is known (nodes, this host, the user, the home directory, serial numbers and the like from the facts) goes by name,
also inside folded node sets and in any letter case; addresses, GUIDs, ids and home directories go by form. Secrets go
whole, by the name they stand under or by their own form (base/confidential.py).
"""

from __future__ import annotations

import contextlib
import getpass
import io
import ipaddress
import itertools
import json
import os
import re
import tarfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fairlead.base.confidential import HIDDEN, hide, is_secret_name
from fairlead.base.nodeset import NodeSet, expand, fold
from fairlead.base.trust import PRIVATE_FILE, read_file
from fairlead.base.units import whole
from fairlead.errors import FairleadError
from fairlead.records.runs import MAX_HEAD_BYTES, MAX_PART_BYTES, Run

_UUID = r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|\b(?=\d*[a-f])[0-9a-f]{32}\b"
_MAC = r"\b(?:[0-9a-fA-F]{2}:){5}(?:(?:[0-9a-fA-F]{2}:){14})?[0-9a-fA-F]{2}\b"
_GUID = r"\b(?:[0-9a-fA-F]{4}:){3,7}[0-9a-fA-F]{4}\b|\b0x[0-9a-fA-F]{16}\b|\b(?=\d*[a-f])[0-9a-f]{16}\b"
_IPV4 = r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])"
_IPV6 = r"(?<![0-9a-zA-Z:.])[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?![0-9a-zA-Z:.])"
_FORMS = tuple(
    (kind, re.compile(form))
    for kind, form in (("id", _UUID), ("mac", _MAC), ("guid", _GUID), ("addr", _IPV4), ("addr", _IPV6))
)
# looked for only where a word begins: from its middle, every long word would be read again and again
_FOLDED = re.compile(r"(?<![A-Za-z0-9._:@-])[A-Za-z0-9._:@-]*(?:\[[0-9,\- ]+\][A-Za-z0-9._:@-]*)+")
# what colons and the like part, and marks end, are sets of their own: `n[0-1]: up`, `user@n[0-1]:/tmp`
_SET = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]*)?\[[0-9,\- ]+\](?:[A-Za-z0-9._-]*(?:[A-Za-z0-9]|\[[0-9,\- ]+\]))*")
_NAMES = re.compile(r"[A-Za-z0-9]+(?:[-_.:@]+[A-Za-z0-9]+)*")
_ATOM = re.compile(r"[A-Za-z0-9]+")
_DOMAIN = re.compile(r"(?:\.[A-Za-z0-9-]+){2,}")
_HOME = re.compile(r"(/(?:home\d{0,3}|Users|users|u)/)([A-Za-z0-9._-]{1,128})")
_MAX_FOLDED, _MAX_UNFOLDED = 20_000, 300_000
"""Names of one folded set, and of all together, that are looked at one by one; a larger set becomes one stand-in."""

_PRIVATE = re.compile(
    r"(?i).*serial|hostname|asset_tag|virtualmachine.*|physicalhost.*|resource(id|group.*)|name|vmscalesetname|.*_?tag"
)
"""Keys of facts about identity whose values tell one customer's machine from another's."""
_IDENTITY = {"identity", "kvp", "compute", "gpus"}
"""Below these, a key that is private somewhere is private."""


class Redactor:
    """A stable mapping from real names to stand-ins."""

    def __init__(self, *, nodes: Iterable[str] = (), words: dict[str, str] | None = None) -> None:
        self._known: dict[str, str] = {}
        """Names of nodes, of users, of this host: looked up, as there may be very many."""
        self._longest = 1
        """How many parts, between marks such as hyphens, a known name has at most."""
        self._num_nodes = 0
        for name in NodeSet(nodes):
            self._learn(name)
        others: dict[str, str] = {}
        for word, stand_in in (words or {}).items():
            if _NAMES.fullmatch(word):
                self._know(word, stand_in)
            elif word:
                others.setdefault(word.lower(), stand_in)
        self._others = others
        self._pattern = _pattern_of(others)
        self._seen: dict[str, str] = {}
        self._num_seen: Counter[str] = Counter()
        self._num_unfolded = 0
        self._unfolded: dict[str, str] = {}

    @classmethod
    def for_run(cls, run: Run) -> Redactor:
        """Knows the nodes of a run's cluster file, facts and findings, its host, and who ran it."""
        facts = run.facts()
        nodes = {f.node for f in facts} | set(_declared(run))
        if (run.path / "result.json").is_file():
            nodes.update(n for f in run.findings() for n in f.subject.nodes)
        home = str(Path.home())
        words = {run.info.host: "control-host", getpass.getuser(): "user"}
        private = {v for f in facts for v in _private(f.facts, inside=False)}
        words |= {value: f"<private-{i}>" for i, value in enumerate(sorted(private), 1)}
        # `root` and `/root` are nobody's name, and replacing them would garble every path
        words = {k: v for k, v in words.items() if k not in {"root", "localhost"}}
        return cls(nodes=nodes - {""}, words=words | ({home: "/home/user"} if home not in {"/", "/root"} else {}))

    def text(self, text: str) -> str:
        """Text with every name and secret replaced, in time that grows with its length and no faster."""
        text = hide(text)
        text = _FOLDED.sub(lambda m: _SET.sub(lambda part: self._folded(part[0]), m[0]), text)
        text = self._pattern.sub(lambda m: self._others[m[0].lower()], text)
        text = self._named(text)
        text = _HOME.sub(self._at_home, text)
        for kind, form in _FORMS:
            text = form.sub(lambda m, kind=kind: self._stand_in(kind, m[0]), text)  # type: ignore[misc]
        return text

    def tree(self, value: Any, *, is_secret: bool = False) -> Any:
        """The same for every string of a JSON-like value, keys included; what a key or a flag says is secret goes."""
        if isinstance(value, str):
            return HIDDEN if is_secret and value else self.text(value)
        if isinstance(value, dict):
            return {self.text(k): self.tree(v, is_secret=is_secret or is_secret_name(k)) for k, v in value.items()}
        if isinstance(value, list | tuple):
            before = [is_secret, *(is_secret or _is_secret_flag(v) for v in value)]
            return [self.tree(v, is_secret=told) for v, told in zip(value, before, strict=False)]
        return value

    def _know(self, name: str, stand_in: str) -> None:
        self._known.setdefault(name.lower(), stand_in)
        self._longest = max(self._longest, len(_ATOM.findall(name)))

    def _learn(self, name: str) -> str:
        if name.lower() not in self._known:
            self._know(name, f"node-{self._num_nodes:03}")
            self._num_nodes += 1
        return self._known[name.lower()]

    def _named(self, text: str) -> str:
        return _NAMES.sub(lambda m: self._known_in(m[0]), text)

    def _known_in(self, found: str) -> str:
        """Every known name in a word that may be several, the longest first.

        A domain behind one goes with it; one ending, as in `n1.json`, is a file's.
        """
        atoms = [m.span() for m in _ATOM.finditer(found)]
        out, done, at = list[str](), 0, 0
        while at < len(atoms):
            start = atoms[at][0]
            for reach in range(min(self._longest, len(atoms) - at), 0, -1):
                end = atoms[at + reach - 1][1]
                if (stand_in := self._known.get(found[start:end].lower())) is not None:
                    break
            else:
                at += 1
                continue
            domain = _DOMAIN.match(found, end)
            out += [found[done:start], stand_in]
            done = domain.end() if domain else end
            while at < len(atoms) and atoms[at][0] < done:
                at += 1
        return "".join([*out, found[done:]]) if out else found

    def _folded(self, found: str) -> str:
        """A folded set with a known node in it becomes a folded set of stand-ins; its other members are nodes too."""
        if (known := self._unfolded.get(found)) is not None:
            return known
        num = _num_folded(found)
        self._num_unfolded += min(num, _MAX_FOLDED)
        if num > _MAX_FOLDED or self._num_unfolded > _MAX_UNFOLDED:
            return self._stand_in("nodes", found)
        try:
            names = {name: self._named(name) for name in expand(found)}
        except FairleadError:
            return self._stand_in("nodes", found)  # nobody can tell whose name is in it
        if all(name == new for name, new in names.items()):
            return found
        names |= {name: self._learn(name) for name, new in names.items() if name == new}
        self._unfolded[found] = fold(names.values())
        return self._unfolded[found]

    def _at_home(self, found: re.Match[str]) -> str:
        name = found[2]
        if name not in self._seen and name not in ("user", *self._seen.values()):
            self._num_seen["home"] += 1
            self._seen[name] = f"user-{self._num_seen['home']}"
        return found[1] + self._seen.get(name, name)

    def _stand_in(self, kind: str, found: str) -> str:
        if kind == "addr":
            try:
                address = ipaddress.ip_address(found)
            except ValueError:
                return found
            if address.is_loopback or address.is_unspecified:
                return found
        if found not in self._seen:
            self._num_seen[kind] += 1
            self._seen[found] = f"<{kind}-{self._num_seen[kind]}>"
        return self._seen[found]


def _pattern_of(words: Iterable[str]) -> re.Pattern[str]:
    """Any of some words where it stands by itself."""
    joined = _one_of(sorted(words)) if words else r"(?!)"
    return re.compile(rf"(?i)(?<![a-z0-9])(?:{joined})(?![a-z0-9])")


def _one_of(words: list[str]) -> str:
    """Any of some words, the longest that fits, where what they have in common is read once."""
    common = os.path.commonprefix(words)  # noqa: RUF071 - of characters is what is meant
    rests = [word[len(common) :] for word in words]
    groups = [_one_of(list(group)) for _, group in itertools.groupby(filter(None, rests), key=lambda rest: rest[0])]
    if not groups:
        return re.escape(common)
    return f"{re.escape(common)}(?:{'|'.join(groups)}){'?' if '' in rests else ''}"


def _num_folded(text: str) -> int:
    """How many names a folded set stands for, at least, without unfolding it."""
    num = 1
    for body in re.findall(r"\[([^\]]*)\]", text):
        total = 0
        for piece in body.split(","):
            low, _, high = piece.strip().partition("-")
            if len(low) > 18 or len(high) > 18:
                return _MAX_FOLDED + 1
            first, last = whole(low), whole(high)
            total += last - first + 1 if first is not None and last is not None and last >= first else 1
        num *= total
        if num > _MAX_FOLDED:
            break
    return num


def _is_secret_flag(value: Any) -> bool:
    """Whether the next word of a command line is its secret: `--token`."""
    return isinstance(value, str) and value.startswith("--") and "=" not in value and is_secret_name(value)


def pack(folder: Path, redactor: Redactor | None) -> bytes:
    """A run folder as .tar.gz bytes; with a redactor, every file's name and content goes through it.

    Only the folder's own files: a link in it, or anything that is no file, is left out.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for path in sorted(_own_files(folder)):
            try:
                data = read_file(path, MAX_PART_BYTES, follow=False)
            except OSError:
                continue
            name = str(Path(folder.name) / path.relative_to(folder))
            if redactor:
                data, name = _clean(path, data.decode("utf-8", "replace"), redactor).encode(), redactor.text(name)
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(data), int(path.stat().st_mtime), PRIVATE_FILE
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _own_files(folder: Path) -> Iterator[Path]:
    for base, _, names in os.walk(folder):  # which follows no link
        yield from (Path(base, name) for name in names)


def _clean(path: Path, text: str, redactor: Redactor) -> str:
    """A file's text without names. JSON is read first: behind an escaped line break a name has no word boundary."""
    try:
        if path.suffix == ".json":
            return json.dumps(redactor.tree(json.loads(text)), ensure_ascii=False, indent=2)
        if path.suffix == ".jsonl":
            lines = (json.dumps(redactor.tree(json.loads(line)), ensure_ascii=False) for line in text.splitlines())
            return "".join(f"{line}\n" for line in lines)
    except (ValueError, RecursionError):
        pass
    return redactor.text(text)


def _declared(run: Run) -> Iterator[str]:
    """The nodes of the cluster file kept in the run, if there is one and it reads."""
    with contextlib.suppress(OSError, ValueError, FairleadError, AttributeError, TypeError):
        for pool in tomllib.loads(read_file(run.path / "spec.toml", MAX_HEAD_BYTES).decode()).get("pool", []):
            yield from expand(pool.get("nodes", ""))


def _private(value: Any, *, inside: bool, key: str = "") -> Iterator[str]:
    """The values of facts that identify a machine by name or number."""
    if isinstance(value, dict):
        for name, child in value.items():
            yield from _private(child, inside=inside or name in _IDENTITY, key=str(name))
    elif isinstance(value, list):
        for child in value:
            yield from _private(child, inside=inside, key=key)
    elif inside and isinstance(value, str) and len(value) > 3 and _PRIVATE.fullmatch(key):
        yield value
