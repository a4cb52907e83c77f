"""The official Kusto language service, where it is: the judge of which queries are KQL and which columns they give.

It is for development: `npm install --prefix FOLDER @kusto/language-service-next`, and FAIRLEAD_KUSTO=FOLDER.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

PACKAGE = Path("node_modules", "@kusto", "language-service-next", "Kusto.Language.Bridge.min.js")


def kusto_root() -> Path | None:
    """The folder of the package; None where it, or node, is not."""
    root = Path(os.environ.get("FAIRLEAD_KUSTO") or Path(__file__).parents[2] / ".kusto")
    return root if (root / PACKAGE).is_file() and shutil.which("node") else None


def judged(queries: list[str]) -> list[dict[str, Any]]:
    """What it says of every query: `errors`, and `columns` with names and types."""
    root = kusto_root()
    assert root is not None
    script = Path(__file__).with_name("kusto_service.js")
    text = "\n".join(json.dumps(query) for query in queries)
    out = subprocess.run(
        ["node", str(script), str(root)], input=text, capture_output=True, text=True, check=True, timeout=240
    )
    return [json.loads(line) for line in out.stdout.splitlines()]
