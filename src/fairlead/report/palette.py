"""One set of colours for every picture: planes, verdicts, ink; light and dark as CSS variables.

The plane colours were searched for, not chosen: in either theme the two nearest of the eight stay apart (OKLab distance
>= 0.09) for normal sight and for simulated protanopia, deuteranopia and tritanopia, keep 3:1 contrast to the paper
(WCAG 2.2, 1.4.11), and stay away from the red of a failure. tests/unit/report/test_palette.py holds all of it.
Colour is never the only signal: planes are named where they are drawn, verdicts are words.
"""

from __future__ import annotations

PLANES_LIGHT = ("#2d21dc", "#c2830a", "#158a98", "#740c7f", "#281d51", "#829c77", "#2e98f5", "#667149")
PLANES_DARK = ("#9da2f5", "#d1a70b", "#0ae5b7", "#975398", "#637fed", "#909470", "#b4f5f5", "#dad641")

LIGHT = {
    "paper": "#ffffff",
    "panel": "#f5f6f8",
    "ink": "#16191f",
    "muted": "#5a6270",
    "rule": "#d5d9e0",
    "accent": "#2753d3",
    "pass": "#14703f",
    "warn": "#8f5600",
    "fail": "#c3122f",
    "unknown": "#6f3fb8",
}
DARK = {
    "paper": "#12151a",
    "panel": "#1b1f26",
    "ink": "#e8eaee",
    "muted": "#a1a9b6",
    "rule": "#343b46",
    "accent": "#8fb0ff",
    "pass": "#5fd08f",
    "warn": "#f0b44c",
    "fail": "#ff6b74",
    "unknown": "#c09bff",
}


def _variables(colours: dict[str, str], planes: tuple[str, ...]) -> str:
    named = colours | {f"plane-{i}": c for i, c in enumerate(planes)}
    return "".join(f"--{name}:{colour};" for name, colour in named.items())


VARIABLES = (
    f":root{{color-scheme:light dark;{_variables(LIGHT, PLANES_LIGHT)}}}\n"
    f"@media (prefers-color-scheme:dark){{:root{{{_variables(DARK, PLANES_DARK)}}}}}\n"
    f"@media print{{:root{{color-scheme:light;{_variables(LIGHT, PLANES_LIGHT)}}}}}\n"
)
"""The palette as CSS: dark where the reader asked for it, always light on paper."""


def colour(role: int | str) -> str:
    """A CSS value for a plane number (counted round after eight) or for a role such as `fail` or `muted`."""
    return f"var(--plane-{role % len(PLANES_LIGHT)})" if isinstance(role, int) else f"var(--{role})"
