"""fairlead as a bare install has it: a virtual environment with what the distribution requires, and no extra.

Made of the packages beside the running Python, by their own metadata: no index is asked, and what is
not declared is not there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.markers import Marker

import fairlead


def install(folder: Path) -> Path:
    """Make it; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (place,) = folder.glob("lib/python3*/site-packages")
    for name in sorted(required("fairlead") - {"fairlead"}):
        for part in parts(metadata.distribution(name)):
            (place / part.name).symlink_to(part)
    (place / "fairlead.pth").write_text(f"{Path(fairlead.__file__).parents[1]}\n")
    return folder / "bin" / "python"


def required(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
    """A distribution and all it requires without extras, on this Python."""
    found = {name}
    for line in metadata.distribution(name).requires or ():
        text, _, marker = (part.strip() for part in line.partition(";"))
        other = re.match(r"[A-Za-z0-9._-]+", text)[0]
        if other not in seen and holds(marker):
            found |= required(other, seen | found)
    return found


def holds(marker: str) -> bool:
    """Whether a requirement counts here: not one of an extra, nor one of another Python or system."""
    return "extra" not in marker and (not marker or Marker(marker).evaluate())


def parts(distribution: metadata.Distribution) -> set[Path]:
    """The folders and files of a distribution right below site-packages."""
    inside = {file.parts[0] for file in distribution.files if file.parts[0] != ".."}
    return {Path(distribution.locate_file(name)).resolve() for name in inside if name != "__pycache__"}
