"""Programs for nodes: parts joined into one file, and the words that start it from standard input, with more to follow.

A program must not need a file on the node, which may have a full disk; and what runs for long must go on reading its
input. So Python is told to read exactly the program's bytes, to run them, and to leave the rest alone.
"""

from __future__ import annotations

import ast
import functools
from importlib import resources

PACKAGE = "fairlead.preflight.onnode"
AGENT, RANK = ("wire", "agent"), ("place", "share", "rank")


@functools.cache
def program(parts: tuple[str, ...]) -> bytes:
    """The parts as one file: their imports of each other are gone, for everything stands in one place."""
    root = resources.files(PACKAGE)
    texts = [_stripped(root.joinpath(f"{part}.py").read_text("utf-8"), part) for part in parts]
    return ("from __future__ import annotations\n" + "".join(texts)).encode()


def _stripped(text: str, part: str) -> str:
    """A part without its docstring, its `__future__` line and its imports of other parts."""
    drop: set[int] = set()
    for i, node in enumerate(ast.parse(text).body):
        is_docstring = i == 0 and isinstance(node, ast.Expr)
        is_ours = isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("__future__", PACKAGE))
        if is_docstring or is_ours:
            drop.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    kept = [line for number, line in enumerate(text.splitlines(), 1) if number not in drop]
    return f"\n# ---- {part}.py\n" + "\n".join(kept).strip("\n") + "\n"


def boot(source: bytes, name: str, *, isolated: bool = True) -> tuple[str, ...]:
    """Words behind `python` that read exactly the source, run it, and leave the rest of the input alone.

    `isolated` keeps the user's own modules and PYTHON* settings out of it. `name` shows in `ps`.
    """
    num = len(source)
    # whatever lies in the directory a scheduler starts its tasks in must not be imported
    safe = "" if isolated else "import sys;sys.path[0] == '' and sys.path.pop(0)\n"
    words = safe + (
        f"import os;b=b''\nwhile len(b)<{num}:\n d=os.read(0,{num}-len(b))\n"
        " if not d: raise SystemExit('the program did not arrive whole')\n b+=d\n"
        f"exec(compile(b,{name!r},'exec'))"
    )
    # the name comes as an option: the program's own arguments begin behind `-c`
    return (*(("-I",) if isolated else ()), "-u", "-X", name, "-c", words)
