"""Plain columns, two spaces apart, the way kubectl prints them: no boxes, numbers to the right.

Cells may hold what other machines said; line breaks become spaces, what cannot be seen is written out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.base.shown import shown

_BREAKS = "\t\n\v\f\r\x1c\x1d\x1e\x85\u00a0\u2028\u2029"


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, indent: str = "") -> str:
    """Aligned text, one line a row, no trailing blanks. A column of numbers is set to the right.

    >>> print(table(["NODE", "GPUS"], [["n1", 8], ["n2", 16]]))
    NODE  GPUS
    n1       8
    n2      16
    """
    body = [["" if c is None else printable(str(c)) for c in row] for row in rows]
    right = [bool(body) and all(_numeric(r[i]) for r in body) for i in range(len(header))]
    lines = [list(header), *body] if any(header) else body
    widths = [max((len(r[i]) for r in lines), default=0) for i in range(len(header))]
    return "\n".join(
        (
            indent + "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        ).rstrip()
        for row in lines
    )


def printable(text: str) -> str:
    """Text on one line that cannot move a terminal's cursor, change its colours or turn its reading direction."""
    return text if text.isprintable() else shown("".join(" " if c in _BREAKS else c for c in text))


def _numeric(cell: str) -> bool:
    return cell in {"", "-"} or cell.replace(".", "", 1).replace("-", "", 1).isdigit()
