"""The shape of the code at two commits: lines, arrows between rooms, places that start something on nodes.

    python bench/shape.py 7ca90ef HEAD

A room is a package or module right below `fairlead`; an arrow is an ordered pair of rooms of which one imports the
other, also inside a function. A place is a call in STARTS outside `cluster` and `lab`, on a name in HOLDERS.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile

ROOT = "src/fairlead/"
STARTS = {"run", "run_each", "run_ranks", "start", "live", "live_tasks", "start_tasks", "tasks"}
"""Methods of a cluster that start a program on nodes, of both commits."""
HOLDERS = {"cluster", "nodes", "aio", "engine", "_cluster", "_engine"}
"""What a cluster is called where they are called."""


def sources(commit: str) -> dict[str, str]:
    """Path below fairlead -> text."""
    packed = subprocess.run(["git", "archive", commit, ROOT], check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        return {
            member.name.removeprefix(ROOT): file.read().decode()
            for member in tar
            if member.name.endswith(".py") and (file := tar.extractfile(member))
        }


def imported(node: ast.AST) -> list[str]:
    """The modules of fairlead that a node of the tree imports."""
    if isinstance(node, ast.ImportFrom) and node.module:
        names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "fairlead" else [node.module]
    else:
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
    return [name for name in names if name.startswith("fairlead.")]


def starts(node: ast.AST) -> bool:
    """Whether it is a call that starts a program on nodes."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in STARTS):
        return False
    on = node.func.value
    return (on.attr if isinstance(on, ast.Attribute) else on.id if isinstance(on, ast.Name) else "") in HOLDERS


def main() -> None:
    """One line a commit."""
    for commit in sys.argv[1:]:
        arrows: set[tuple[str, str]] = set()
        lines: dict[str, int] = {}
        places: dict[str, int] = {}
        found = sources(commit)
        rooms = {path.split("/")[0].removesuffix(".py") for path in found}
        for path, text in found.items():
            room = path.split("/")[0].removesuffix(".py")
            lines[room] = lines.get(room, 0) + text.count("\n")
            for node in ast.walk(ast.parse(text)):
                arrows |= {(room, to) for name in imported(node) if (to := name.split(".")[1]) != room and to in rooms}
                if room not in ("cluster", "lab") and starts(node):
                    places[path] = places.get(path, 0) + 1
        out, into = sum(a == "preflight" for a, _ in arrows), sum(b == "preflight" for _, b in arrows)
        longest = max((text.count("\n"), path) for path, text in found.items() if path.startswith("preflight/"))
        print(f"{commit}: {len(rooms)} rooms, {len(arrows)} arrows, of preflight {out} out {into} in")
        print(f"  preflight {lines['preflight']} lines, longest {longest}; cluster {lines['cluster']}, launch", end=" ")
        print(f"{lines.get('launch', 0)}; places that start: {sum(places.values())} in {len(places)} files: {places}")


if __name__ == "__main__":
    main()
