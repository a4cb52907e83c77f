"""Makes one program of the readers: their source texts one after the other, without the imports among them.

The program is made where fairlead runs, from the installed package, so that an editable install, a wheel and a zip all
send the same text. Top-level names must not clash between readers; a test holds that.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from importlib import resources

PACKAGE = "fairlead.probe.readers"
FIRST, LAST = "tree", "main"


@functools.cache
def program() -> str:
    """The probe as one Python file: standard library, Python 3.9 syntax."""
    root = resources.files(PACKAGE)
    texts = {f.name.removesuffix(".py"): f.read_text("utf-8") for f in root.iterdir() if f.name.endswith(".py")}
    middle = sorted(set(texts) - {FIRST, LAST, "__init__"})
    body = "".join(_strip(texts[name], name) for name in (FIRST, *middle, LAST))
    digest = hashlib.sha256(body.encode()).hexdigest()[:12]
    return f'from __future__ import annotations\n\nPROBE_DIGEST = "{digest}"\n{body}'


def _strip(text: str, name: str) -> str:
    """A reader without its docstring, its `__future__` line and its imports of other readers."""
    tree = ast.parse(text)
    drop: set[int] = set()
    for index, node in enumerate(tree.body):
        is_docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_ours = isinstance(node, ast.ImportFrom) and (
            node.module == "__future__" or (node.module or "").startswith(PACKAGE)
        )
        if is_docstring or is_ours:
            drop.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    kept = [line for number, line in enumerate(text.splitlines(), 1) if number not in drop]
    return f"\n# ---- {name}.py\n" + "\n".join(kept).strip("\n") + "\n"
