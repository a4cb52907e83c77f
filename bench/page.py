"""A section of a page below docs/benchmarks, written by the run that measured it."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
import time
from pathlib import Path


def preface(more: str = "") -> str:
    """Day, command, machine and load, in a line; `more` stands behind the machine."""
    command = shlex.join(["python", *sys.argv])
    machine = f"{os.cpu_count()} cores ({_processor()}), Linux {platform.release()}{more}"
    return f"{time.strftime('%Y-%m-%d', time.gmtime())}, `{command}`, {machine}, load {os.getloadavg()[0]:.1f}."


def write(page: Path, title: str, section: str, text: str) -> None:
    """Put `text` below `## section` of the page, in place of what stood there; other sections stay."""
    old = page.read_text() if page.exists() else f"# {title}\n"
    new = f"## {section}\n\n{text.strip()}\n"
    found = re.search(rf"^## {re.escape(section)}\n.*?(?=^## |\Z)", old, re.MULTILINE | re.DOTALL)
    if found:
        rest = old[found.end() :]
        page.write_text(old[: found.start()] + new + ("\n" + rest if rest else ""))
    else:
        page.write_text(old.rstrip() + "\n\n" + new)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
