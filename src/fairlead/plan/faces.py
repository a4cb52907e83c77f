"""A plan as text: the differences first, then what was chosen and why, so that the end of a long output says it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairlead.base.table import table
from fairlead.plan.advice import Advice
from fairlead.plan.diff import Change
from fairlead.records.finding import Finding
from fairlead.report.text import Paint, findings_text

_MOST_REJECTED = 12
_MOST_LINES = 300
"""Of one file's difference: a whole program that comes along is not read line by line."""


def text_of(
    advice: Advice,
    changes: Sequence[Change],
    notes: Sequence[str],
    findings: Sequence[Finding],
    *,
    folder: Path,
    paint: Paint,
    brief: bool,
    wrote: bool,
) -> str:
    """For people."""
    parts = [] if brief else [_shortened(change) for change in changes if change.diff]
    parts += [_sizes(advice), _network(advice), _storage(advice), _files(changes, folder, wrote=wrote)]
    if said := (*advice.choice.notes, *notes):
        parts.append("\n".join(f"note     {text}" for text in said))
    parts += [findings_text(findings, paint), _last(advice)]
    return "\n\n".join(part for part in parts if part)


def _shortened(change: Change) -> str:
    lines = change.diff.rstrip("\n").split("\n")
    if len(lines) <= _MOST_LINES:
        return "\n".join(lines)
    return "\n".join([*lines[:_MOST_LINES], f"... {len(lines) - _MOST_LINES} lines more of {change.path}"])


def _sizes(advice: Advice) -> str:
    rows = [
        (fit.size.name, fit.nodes, fit.gpus or "-", _price(fit.price_per_hour), "; ".join(fit.reasons[-1:]))
        for fit in advice.choice.fits
    ]
    told = [r for r in advice.choice.rejected if "fewer cores" not in r.reasons[0]]
    against = [(r.size.name, "; ".join(r.reasons)) for r in told[:_MOST_REJECTED]]
    parts = [table(["FITS", "NODES", "GPUS", "PRICE/H", "NETWORK"], rows)] if rows else []
    if against:
        parts.append(table(["REJECTED", "WHY"], against))
    if len(told) > _MOST_REJECTED:
        parts.append(f"and {len(told) - _MOST_REJECTED} more: --json has them all")
    return "\n\n".join(parts)


def _price(price: float | None) -> str:
    return "-" if price is None else f"{price:,.2f}"


def _network(advice: Advice) -> str:
    if advice.network is None:
        return ""
    rows = [(advice.network.kind, "chosen", "; ".join(advice.network.reasons))]
    rows += [(kind, "rejected", why) for kind, why in advice.network.rejected]
    return table(["NETWORK", "", "WHY"], rows) + (f"\n{advice.network.exchange}" if advice.network.exchange else "")


def _storage(advice: Advice) -> str:
    if advice.storage is None:
        return ""
    rows = [
        (
            t.tier.name,
            f"{t.tib:g}",
            f"{t.mbs:,.0f}",
            t.why_not or ("chosen" if t is advice.storage.chosen else "enough"),
        )
        for t in advice.storage.tiers
    ]
    return table(["SHARED FILE SYSTEM", "TIB", "MB/S", ""], rows)


def _files(changes: Sequence[Change], folder: Path, *, wrote: bool) -> str:
    if not changes:
        return ""
    word = {"new": "new", "changed": "changed", "same": "same", "by hand": "BY HAND"}
    rows = [(change.path, word[change.state], f"+{change.added} -{change.removed}", change.about) for change in changes]
    head = f"written below {folder}" if wrote else f"compared with {folder}; nothing is written without --write"
    return f"{head}\n{table(['FILE', '', 'LINES', 'WHAT'], rows)}"


def _last(advice: Advice) -> str:
    """The choice in one line, at the end, where it is seen first."""
    chosen = advice.choice.chosen
    if advice.spec is not None and not advice.cluster_file:
        what = ", ".join(f"{len(pool.nodes)} x {pool.size}" for pool in advice.spec.pools)
    elif chosen is not None:
        what = f"{chosen.nodes} x {chosen.size.name}"
    else:
        return ""
    found = advice.storage.chosen if advice.storage else None
    tier = f"{found.tier.name} of {found.tib:g} TiB" if found else ""
    return "plan     " + ", ".join(filter(None, (what, advice.network.kind if advice.network else "", tier)))
