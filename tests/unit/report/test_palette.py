"""The colours keep what palette.py promises: apart for every kind of sight, visible, and not the red of a failure."""

from __future__ import annotations

from itertools import combinations

import pytest

from fairlead.report import palette

# Machado, Oliveira, Fernandes 2009, severity 1.0, for linear RGB
SIGHT = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
LIGHT = (palette.LIGHT, palette.PLANES_LIGHT)
DARK = (palette.DARK, palette.PLANES_DARK)


def linear(colour):
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def seen(colour, sight):
    return [min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear(colour), strict=True)))) for row in SIGHT[sight]]


def oklab(rgb):
    """Björn Ottosson, 2020."""
    r, g, b = rgb
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    m = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    s = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * m - 0.0040720468 * s,
        1.9779984951 * long - 2.4285922050 * m + 0.4505937099 * s,
        0.0259040371 * long + 0.7827717662 * m - 0.8086757660 * s,
    )


def distance(one, other, sight):
    a, b = oklab(seen(one, sight)), oklab(seen(other, sight))
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5


def contrast(one, other):
    lum = [sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear(c), strict=True)) for c in (one, other)]
    return (max(lum) + 0.05) / (min(lum) + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_planes_stay_apart(theme, sight):
    assert min(distance(a, b, sight) for a, b in combinations(theme[1], 2)) >= 0.09


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_planes_and_verdicts_are_visible_on_the_paper(theme):
    roles, planes = theme
    assert min(contrast(c, roles["paper"]) for c in planes) >= 3.0
    for ink in ("ink", "muted", "accent", "pass", "warn", "fail", "unknown"):
        assert contrast(roles[ink], roles["paper"]) >= 4.5, ink
        assert contrast(roles[ink], roles["panel"]) >= 4.5, ink


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_no_plane_looks_like_a_failure(theme):
    assert min(distance(c, theme[0]["fail"], "normal") for c in theme[1]) >= 0.15


def test_a_plane_keeps_its_colour_and_counts_round_after_eight():
    assert palette.colour(3) == palette.colour(11) == "var(--plane-3)"
    assert palette.colour("fail") == "var(--fail)"


def test_paper_is_light_whatever_the_screen_is():
    dark, printed = palette.VARIABLES.index("prefers-color-scheme:dark"), palette.VARIABLES.index("@media print")
    assert dark < printed, "the later rule wins"
    assert palette.LIGHT["paper"] in palette.VARIABLES[printed:]
    assert palette.DARK["paper"] not in palette.VARIABLES[printed:]
