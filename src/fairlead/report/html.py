"""One self-contained HTML file: verdict and worst findings on top, then sections with figures, tables and commands.

No script, no network: the content security policy in the file forbids both, so that what a node said can do no harm
even if an escape were missing here. Each figure is drawn twice, wide and narrow; the style sheet shows what fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from fairlead.report.folding import Fold, folded, one_line
from fairlead.report.palette import VARIABLES
from fairlead.report.svg import STYLE, Figure, Table, escape
from fairlead.report.text import counts_line

__all__ = ["Code", "Figure", "Page", "Section", "Table", "Text", "page_html"]

WIDE, NARROW = 880, 344
"""Widths figures are drawn at: for a desk and for a telephone (390 pixels less the margins)."""

MAX_SHOWN = 60
"""Findings shown in full; more of them stand in a table under a fold."""

_STYLE_SHEET = Path(__file__).with_name("page.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Code:
    """Lines to be typed or pasted, or a program's output as it was."""

    text: str


Block: TypeAlias = Text | Code | Table | Figure


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, kw_only=True)
class Page:
    """What a report says. Every text is plain; nothing in it is markup."""

    title: str
    verdict: Verdict
    headline: str
    """One sentence: the worst thing, or that all is well."""
    findings: Sequence[Finding] = ()
    facts: Sequence[tuple[str, str]] = ()
    """A few names and values worth seeing first: nodes, ranks, duration, run."""
    next: Sequence[str] = ()
    """Commands to type now."""
    sections: Sequence[Section] = ()
    command: str = ""
    """What was typed to get this report."""
    version: str = ""
    written: str = ""


def page_html(page: Page) -> str:
    """The whole file."""
    style = VARIABLES + STYLE + _STYLE_SHEET.read_text("utf-8")
    facts = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in page.facts)
    steps = escape("\n".join(page.next))
    made = f"<p>made by <code>{escape(page.command)}</code></p>" if page.command else ""
    by = " ".join(p for p in ("fairlead", escape(page.version)) if p) + (
        f", {escape(page.written)}" if page.written else ""
    )
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">',
        f"<title>{escape(page.verdict.upper())}: {escape(page.title)}</title>",
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>",
        f'<header class="{page.verdict}"><p class="title">{escape(page.title)}</p>',
        f"<h1><span class='verdict'>{page.verdict.upper()}</span> {escape(page.headline)}</h1>",
        f"<dl>{facts}</dl>" if facts else "",
        f'<div class="next"><p>next</p><pre>{steps}</pre></div>' if steps else "",
        "</header>",
        _findings(page.findings) if page.findings else "",
        *(_section(s) for s in page.sections),
        f"<footer>{made}<p>{by}</p></footer>\n</main>\n</body>\n</html>\n",
    ]
    return "\n".join(p for p in parts if p)


def _findings(findings: Sequence[Finding]) -> str:
    groups = folded(findings)
    loud = [g for g in groups if g.first.verdict not in {Verdict.PASS, Verdict.SKIP}]
    quiet = [g for g in groups if g.first.verdict in {Verdict.PASS, Verdict.SKIP}]
    out = ['<section class="findings">', "<h2>Findings</h2>", f"<p class='pale'>{escape(counts_line(findings))}</p>"]
    out += [_finding(g) for g in loud[:MAX_SHOWN]]
    out += [
        _fold(f"{len(rest)} {what}", _table(_findings_table(rest)))
        for rest, what in ((loud[MAX_SHOWN:], "more"), (quiet, "passed or skipped"))
        if rest
    ]
    return "\n".join([*out, "</section>"])


def _finding(group: Fold) -> str:
    first = group.first
    rows = [
        ("read", f"<code class='pale'>{escape(e.source)}</code> <code>{escape(one_line(e.value, 400))}</code>")
        for e in first.evidence[:5]
    ]
    if first.waived:
        note = f"was {first.waived.was}; {first.waived.reason} (until {first.waived.expires})"
        rows.append(("waived", escape(note)))
    if first.remedy:
        rows.append(("do", escape(first.remedy)))
    body = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in rows)
    return (
        f'<article class="{first.verdict}"><h3><span class="verdict">{first.verdict.upper()}</span> '
        f"<span class='subject'>{escape(group.subject)}</span> <code>{escape(first.code)}</code></h3>"
        f"<p>{escape(first.message)}</p>" + (f"<dl>{body}</dl>" if body else "") + "</article>"
    )


def _findings_table(groups: Iterable[Fold]) -> Table:
    rows = [(g.first.verdict, g.subject, g.first.code, g.first.message) for g in groups]
    return Table(header=["verdict", "subject", "code", "message"], rows=rows)


def _section(section: Section) -> str:
    return "\n".join(
        ["<section>", f"<h2>{escape(section.title)}</h2>", *(_block(b) for b in section.blocks), "</section>"]
    )


def _block(block: Block) -> str:
    match block:
        case Text():
            return f"<p>{escape(block.text)}</p>"
        case Code():
            return f'<pre class="scroll">{escape(block.text)}</pre>'
        case Table():
            return _table(block)
        case Figure():
            return _figure(block)


def _figure(figure: Figure) -> str:
    drawn = "".join(
        f'<div class="{name}">{figure.draw(width).inline(figure.title, figure.desc)}</div>'
        for name, width in (("wide", WIDE), ("narrow", NARROW))
    )
    made = f'<p class="made">made by <code>{escape(figure.command)}</code></p>' if figure.command else ""
    said = figure.desc if figure.caption is None else figure.caption
    caption = f"<figcaption><b>{escape(figure.title)}</b> {escape(said)}</figcaption>"
    return f"<figure>{caption}{drawn}{_fold('data', _table(figure.table))}{made}</figure>"


def _fold(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def _table(table: Table) -> str:
    rows = [["" if c is None else str(c) for c in row] for row in table.rows]
    right = [bool(rows) and all(_is_number(r[i]) for r in rows) for i in range(len(table.header))]

    def line(cells: Sequence[str], tag: str) -> str:
        return (
            "<tr>"
            + "".join(
                f"<{tag}{' class=num' if is_right else ''}>{escape(c)}</{tag}>"
                for c, is_right in zip(cells, right, strict=True)
            )
            + "</tr>"
        )

    body = "\n".join(line(row, "td") for row in rows)
    return (
        f'<div class="scroll"><table><thead>{line(table.header, "th")}</thead><tbody>\n{body}\n</tbody></table></div>'
    )


def _is_number(cell: str) -> bool:
    """Whether a cell reads as a number, with or without a unit behind it."""
    word = cell.partition(" ")[0]
    try:
        float(word)
    except ValueError:
        return cell in {"", "-"}
    return len(cell) - len(word) <= 6
