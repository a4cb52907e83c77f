"""Objects as YAML: the only place of the writers that needs a YAML library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

_WIDTH = 118


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Keys stay in their order, lists are indented, texts of several lines stand as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write a part that occurs twice twice."""
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: FBT001, FBT002 - PyYAML's own
        """Indent lists below their key, too."""
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(objects: Iterable[Any], *, head: str = "") -> str:
    """Documents of a file, with a comment above them."""
    comment = "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines())
    parts = [yaml.dump(made, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True) for made in objects]
    return comment + "---\n".join(parts)
