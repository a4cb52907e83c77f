"""Taking names out of a run before it is shown to strangers: the same stand-in for the same name, so it still reads.

Names that are known (nodes, this host, the user, the home directory) go by name; addresses, GUIDs and ids go by form.
"""

from __future__ import annotations

import getpass
import io
import ipaddress
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fairlead.records.runs import Run

_UUID = r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
_MAC = r"\b(?:[0-9a-fA-F]{2}:){5}(?:(?:[0-9a-fA-F]{2}:){14})?[0-9a-fA-F]{2}\b"
_GUID = r"\b(?:[0-9a-fA-F]{4}:){3,7}[0-9a-fA-F]{4}\b|\b0x[0-9a-fA-F]{16}\b"
_IPV4 = r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])"
_IPV6 = r"(?<![0-9a-zA-Z:.])[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?![0-9a-zA-Z:.])"
_SECRET = r"(?i)\b(sig|token|password|secret|key)=[^&\s\"']+"
_FORMS = (("id", _UUID), ("mac", _MAC), ("guid", _GUID), ("addr", _IPV4), ("addr", _IPV6))


class Redactor:
    """A stable mapping from real names to stand-ins."""

    def __init__(self, *, nodes: Iterable[str] = (), words: dict[str, str] | None = None) -> None:
        self._known = {n: f"node-{i:03}" for i, n in enumerate(sorted(set(nodes), key=lambda n: (len(n), n)))}
        self._known.update({k: v for k, v in (words or {}).items() if k})
        longest_first = sorted(self._known, key=len, reverse=True)
        joined = "|".join(re.escape(w) for w in longest_first)
        self._words = re.compile(rf"(?<![A-Za-z0-9])(?:{joined})(?![A-Za-z0-9])") if joined else None
        self._seen: dict[str, str] = {}

    @classmethod
    def for_run(cls, run: Run) -> Redactor:
        """Knows the nodes of a run's facts and findings, its host, and who ran it."""
        nodes = {f.node for f in run.facts()}
        if (run.path / "result.json").is_file():
            nodes.update(n for f in run.findings() for n in f.subject.nodes)
        home = str(Path.home())
        words = {run.info.host: "control-host", getpass.getuser(): "user"}
        # `root` and `/root` are nobody's name, and replacing them would garble every path
        words = {k: v for k, v in words.items() if k not in ("root", "localhost")}
        return cls(nodes=nodes, words=words | ({home: "/home/user"} if home not in ("/", "/root") else {}))

    def text(self, text: str) -> str:
        """Text with every name replaced."""
        text = re.sub(_SECRET, r"\1=<redacted>", text)
        if self._words:
            text = self._words.sub(lambda m: self._known[m[0]], text)
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
    clean = redactor.text if redactor else (lambda text: text)
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            raw = path.read_bytes()
            data = clean(raw.decode("utf-8", "replace")).encode() if redactor else raw
            info = tarfile.TarInfo(clean(str(Path(folder.name) / path.relative_to(folder))))
            info.size, info.mtime, info.mode = len(data), int(path.stat().st_mtime), 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()
