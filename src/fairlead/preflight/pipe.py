"""Starting a program on a node whose source goes through standard input, with more to follow on it."""

from __future__ import annotations


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
    # the name comes as an option's value: the program's own arguments begin behind it
    return (*(("-I",) if isolated else ()), "-u", "-X", name, "-c", words)
