"""Readers run at the same time; what they find is one document, whichever of them answers first."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from fairlead.probe.readers import crew, main
from fairlead.probe.readers.tree import Tree
from support import trees


def test_runs_of_one_tree_are_one_document_to_the_letter(tmp_path: Path) -> None:
    root = trees.nd_h100_v5().write(tmp_path / "tree")

    def document(seed: int) -> str:
        def shuffled(tree: Tree, jobs: list[crew.Job], limit_s: float) -> Any:
            done = [(job, crew.work(tree, job), 0.0) for job in jobs]
            Random(seed).shuffle(done)
            yield from done

        return json.dumps(main.read_machine(Tree(str(root)), [*main.READERS], 60.0, run=shuffled))

    assert len({document(seed) for seed in range(3)}) == 1
