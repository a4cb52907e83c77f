"""One captured tree, one file of it spoilt at a time: only the readers that opened the file read again, so that every
file of a node can be tried in seconds.
"""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.probe.readers import crew, main
from fairlead.probe.readers.tree import Tree
from fairlead.records.facts import NodeFacts
from support.treeparts import Machine


class Watched(Tree):
    """A tree that remembers which files, links and commands were asked for, there or not."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.opened: set[str] = set()

    def read_bytes(self, path: str, *args: Any, **more: Any) -> bytes:
        self.opened |= {path, self.real_path(path)}
        return super().read_bytes(path, *args, **more)

    def link(self, path: str) -> str:
        self.opened.add(self.real_path(path.rpartition("/")[0]).rstrip("/") + "/" + path.rpartition("/")[2])
        return super().link(path)


@dataclass
class Spoiling:
    """A machine on disk, with what each reader opened of it."""

    machine: Machine
    root: Path
    whole: NodeFacts = field(init=False)
    readers: dict[str, set[str]] = field(init=False, default_factory=lambda: defaultdict(set))
    """File -> the names of the readers that opened it."""

    def __post_init__(self) -> None:
        self.machine.write(self.root)
        document: dict[str, Any] = {"facts": {}, "sources": {}}
        for reader in main.READERS:
            part, opened = self._read(reader)
            for path in opened:
                self.readers[path].add(reader.name)
            self._merge(document, part, reader)
        self.whole = NodeFacts(node="n0", taken_at_ns=part["taken_at_ns"], **document)

    def files(self) -> list[str]:
        """Files and links of the tree that some reader opened."""
        return sorted(path for path in (*self.machine.files, *self.machine.links) if path in self.readers)

    def spoilt(self, path: str, data: bytes | None) -> NodeFacts | None:
        """The facts with other bytes in a file, or without it; None where they are the same."""
        place = Path(f"{self.root}{path}")
        before = self.machine.files.get(path)
        place.unlink()
        if data is not None:
            place.write_bytes(data)
        try:
            document = {"facts": copy.deepcopy(self.whole.facts), "sources": dict(self.whole.sources)}
            for reader in main.READERS:
                if reader.name in self.readers[path]:
                    part, _ = self._read(reader)
                    self._merge(document, part, reader)
        finally:
            place.unlink(missing_ok=True)
            if before is None:
                place.symlink_to(self.machine.links[path])
            else:
                place.write_bytes(before)
        if document["facts"] == self.whole.facts:
            return None
        return NodeFacts(node="n0", taken_at_ns=self.whole.taken_at_ns, **document)

    def _read(self, reader: crew.Reader) -> tuple[dict[str, Any], set[str]]:
        tree = Watched(str(self.root))

        def inline(tree: Tree, jobs: list[crew.Job], limit_s: float) -> Iterator[Any]:
            for job in jobs:
                yield job, crew.work(tree, job), 0.0

        found = main.read_machine(tree, [reader], 60.0, run=inline)
        return json.loads(json.dumps(found)), tree.opened

    @staticmethod
    def _merge(document: dict[str, Any], part: dict[str, Any], reader: crew.Reader) -> None:
        value = part["facts"]
        for key in reader.at:
            value = value[key]
        main.put(document["facts"], reader.at, value)
        document["sources"].update(part["sources"])
