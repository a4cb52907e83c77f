"""Programs for nodes: parts, which are modules of this package, joined into one file that stands on standard input.

A node has nothing of ours and may have a full disk, so a program is one text of Python 3.9 and the standard library,
sent and run without a file. Python reads exactly the program's bytes; what follows on standard input is the program's
own. The text is made where fairlead runs, from the installed package, so an editable install, a wheel and a zip send
the same.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources

_LENGTH = "%011d\n"
"""What stands before the program: its length, always as many bytes."""

_BOOT = (
    "import os,sys;"
    'sys.version_info<(3,9) and sys.exit("fairlead needs Python 3.9 or newer, this is "+sys.version.split()[0]);'
    # whatever lies in the directory a scheduler starts its tasks in must not be imported
    'sys.path[:1]==[""] and sys.path.pop(0);'
    'r=lambda n,b=b"":b if len(b)==n else r(n,b+(os.read(0,n-len(b)) or sys.exit("the program did not arrive whole")));'
    'exec(compile(r(int(r(12))),next(iter(sys._xoptions)),"exec"))'
)
"""One line without a character that some login shell would read as its own."""


@dataclass(frozen=True, slots=True)
class Program:
    """One file that any Python 3.9 runs from its standard input."""

    name: str
    """Shows in `ps` and in tracebacks."""
    source: bytes = field(repr=False)
    digest: str
    """Of the source; the program itself knows it as PROGRAM_DIGEST."""
    needs_packages: bool = False
    """It imports what is installed on the node (torch, say), and takes the user's own Python settings there."""

    @classmethod
    def of(
        cls, name: str, *parts: str, call: str = "", needs_packages: bool = False, later: tuple[str, ...] = ()
    ) -> Program:
        """The modules `parts` as one file, in this order. They may import each other and the standard library.

        `call` is a last line, where the parts only define what is to be done. Those of `later` are compiled when the
        program calls `later()` (base/later.py, one of the parts): what they define and import is not there before.
        """
        body, digest = _joined(parts, call, later)
        return cls(name, body, digest, needs_packages)

    @property
    def stdin(self) -> bytes:
        """What goes to standard input first; whatever follows is left to the program."""
        return _LENGTH.encode() % len(self.source) + self.source

    def words(self, python: str, args: Sequence[str] = ()) -> tuple[str, ...]:
        """The command that runs it; its arguments are `sys.argv[1:]`."""
        flags = ("-u",) if self.needs_packages else ("-I", "-S", "-u")
        # the name comes as an option: the program's own arguments begin behind `-c`
        return (python, *flags, "-X", self.name, "-c", _BOOT, *args)


@functools.cache
def _joined(parts: tuple[str, ...], call: str, later: tuple[str, ...] = ()) -> tuple[bytes, str]:
    """The parts as one text, and its digest."""
    names: Counter[str] = Counter()
    every = (*parts, *later)
    body = "".join(_stripped(_text(part), part, every, names) for part in parts)
    if later:
        rest = "".join(_stripped(_text(part), part, every, names) for part in later)
        body += f"\n\nLATER = {f'from __future__ import annotations{chr(10)}{rest}'!r}\n"
    body += f"\n\n{call}\n" if call else ""
    twice = sorted(name for name, num in names.items() if num > 1)
    assert not twice, f"parts of one program share one name space, and these names stand in two of them: {twice}"
    digest = hashlib.sha256(body.encode()).hexdigest()[:12]
    return f'from __future__ import annotations\n\nPROGRAM_DIGEST = "{digest}"\n{body}'.encode(), digest


def _text(part: str) -> str:
    """A module's source, found without importing its package, which may be slow to import."""
    package, *path = part.split(".")
    return resources.files(package).joinpath(*path[:-1], path[-1] + ".py").read_text("utf-8")


def _stripped(text: str, part: str, parts: Sequence[str], names: Counter[str]) -> str:
    """A part without its docstring, its `__future__` line and its imports of other parts, which stand beside it.

    The names it defines are counted in `names`.
    """
    ours = {name.split(".")[0] for name in parts}
    drop: set[int] = set()
    for index, node in enumerate(ast.parse(text).body):
        names.update(_names(node))
        is_docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        is_ours = module.split(".")[0] in ours
        assert not is_ours or module in parts, f"{part} imports {module}, which is no part of the program"
        if is_docstring or is_ours or module == "__future__":
            drop.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    kept = [line for number, line in enumerate(text.splitlines(), 1) if number not in drop]
    return f"\n# ---- {part.rpartition('.')[2]}.py\n" + "\n".join(kept).strip("\n") + "\n"


def _names(node: ast.stmt) -> list[str]:
    """The names a statement of a module defines. TYPE_CHECKING is the same in all."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    found = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    return [name for name in found if name != "TYPE_CHECKING"]
