"""Taking names out of a run before it is shown to strangers: the same stand-in for the same name, so it still reads.

What is known (nodes, this host, the user, the home directory, serial numbers and the like from the facts) goes by name,
also inside folded node sets and in any letter case; addresses, GUIDs and ids go by form.
"""

from __future__ import annotations

import contextlib
import getpass
import io
import ipaddress
import json
import re
import tarfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fairlead.base.nodeset import NodeSet, expand, fold
from fairlead.errors import FairleadError
from fairlead.records.runs import Run

_UUID = r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|\b(?=\d*[a-f])[0-9a-f]{32}\b"
_MAC = r"\b(?:[0-9a-fA-F]{2}:){5}(?:(?:[0-9a-fA-F]{2}:){14})?[0-9a-fA-F]{2}\b"
_GUID = r"\b(?:[0-9a-fA-F]{4}:){3,7}[0-9a-fA-F]{4}\b|\b0x[0-9a-fA-F]{16}\b|\b(?=\d*[a-f])[0-9a-f]{16}\b"
_IPV4 = r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])"
_IPV6 = r"(?<![0-9a-zA-Z:.])[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?![0-9a-zA-Z:.])"
_SECRET = r"(?i)\b(sig|token|password|secret|key)=[^&\s\"']+"
_FORMS = (("id", _UUID), ("mac", _MAC), ("guid", _GUID), ("addr", _IPV4), ("addr", _IPV6))
_FOLDED = re.compile(r"[A-Za-z0-9._:@-]*(?:\[[0-9,\- ]+\][A-Za-z0-9._:@-]*)+")

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
        self._num_nodes = 0
        for name in NodeSet(nodes):
            self._learn(name)
        for word, stand_in in (words or {}).items():
            if word:
                self._known.setdefault(word.lower(), stand_in)
        self._words = self._pattern()
        self._seen: dict[str, str] = {}

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
        """Text with every name replaced."""
        text = re.sub(_SECRET, r"\1=<redacted>", text)
        text = _FOLDED.sub(lambda m: self._folded(m[0]), text)
        text = self._named(text)
        for kind, form in _FORMS:
            text = re.sub(form, lambda m, kind=kind: self._stand_in(kind, m[0]), text)  # type: ignore[misc]
        return text

    def tree(self, value: Any) -> Any:
        """The same for every string of a JSON-like value, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(k): self.tree(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.tree(v) for v in value]
        return value

    def _learn(self, name: str) -> str:
        if name.lower() not in self._known:
            self._known[name.lower()] = f"node-{self._num_nodes:03}"
            self._num_nodes += 1
        return self._known[name.lower()]

    def _pattern(self) -> re.Pattern[str]:
        """Any known word. A domain behind it goes with it; one ending, as in `n1.json`, is a file's."""
        joined = "|".join(re.escape(w) for w in sorted(self._known, key=len, reverse=True)) or r"(?!)"
        return re.compile(rf"(?i)(?<![a-z0-9])({joined})(?:(?:\.[a-z0-9-]+){{2,}})?(?![a-z0-9])")

    def _named(self, text: str) -> str:
        return self._words.sub(lambda m: self._known[m[1].lower()], text)

    def _folded(self, found: str) -> str:
        """A folded set with a known node in it becomes a folded set of stand-ins; its other members are nodes too."""
        try:
            names = {name: self._named(name) for name in expand(found)}
        except FairleadError:
            return found
        if all(name == new for name, new in names.items()):
            return found
        if unknown := [name for name, new in names.items() if name == new]:
            names |= {name: self._learn(name) for name in unknown}
            self._words = self._pattern()
        return fold(names.values())

    def _stand_in(self, kind: str, found: str) -> str:
        if kind == "addr":
            try:
                address = ipaddress.ip_address(found)
            except ValueError:
                return found
            if address.is_loopback or address.is_unspecified:
                return found
        if found not in self._seen:
            self._seen[found] = f"<{kind}-{sum(v.startswith(f'<{kind}-') for v in self._seen.values()) + 1}>"
        return self._seen[found]


def pack(folder: Path, redactor: Redactor | None) -> bytes:
    """A run folder as .tar.gz bytes; with a redactor, every file's name and content goes through it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            data, name = path.read_bytes(), str(Path(folder.name) / path.relative_to(folder))
            if redactor:
                data, name = _clean(path, data.decode("utf-8", "replace"), redactor).encode(), redactor.text(name)
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(data), int(path.stat().st_mtime), 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _clean(path: Path, text: str, redactor: Redactor) -> str:
    """A file's text without names. JSON is read first: behind an escaped line break a name has no word boundary."""
    try:
        if path.suffix == ".json":
            return json.dumps(redactor.tree(json.loads(text)), ensure_ascii=False, indent=2)
        if path.suffix == ".jsonl":
            lines = (json.dumps(redactor.tree(json.loads(line)), ensure_ascii=False) for line in text.splitlines())
            return "".join(f"{line}\n" for line in lines)
    except ValueError:
        pass
    return redactor.text(text)


def _declared(run: Run) -> Iterator[str]:
    """The nodes of the cluster file kept in the run, if there is one and it reads."""
    with contextlib.suppress(OSError, ValueError, FairleadError, AttributeError, TypeError):
        for pool in tomllib.loads((run.path / "spec.toml").read_text("utf-8")).get("pool", []):
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
