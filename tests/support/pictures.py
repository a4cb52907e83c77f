"""Looking at SVG text without a browser: where each label stands, by the widths the drawing code assumes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from itertools import combinations

from fairlead.report.svg import TEXT_SIZE, text_width

_SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Label:
    text: str
    left: float
    right: float
    baseline: float


def parse(svg: str) -> ET.Element:
    """The picture as a tree; fails where it is not well-formed XML."""
    return ET.fromstring(svg)


def labels(svg: str) -> list[Label]:
    """Every visible label."""
    out = []
    for node in parse(svg).iter(f"{_SVG}text"):
        text = "".join(node.itertext() if node.find(f"{_SVG}title") is None else [node.find(f"{_SVG}title").tail or ""])
        wide, x = text_width(text), float(node.get("x", "0"))
        left = x - {"start": 0.0, "middle": wide / 2, "end": wide}[node.get("text-anchor", "start")]
        out.append(Label(text, left, left + wide, float(node.get("y", "0"))))
    return out


def overlaps(svg: str) -> list[tuple[str, str]]:
    """Pairs of labels that cover each other."""
    return [
        (a.text, b.text)
        for a, b in combinations(labels(svg), 2)
        if abs(a.baseline - b.baseline) < TEXT_SIZE + 2 and a.left < b.right - 0.5 and b.left < a.right - 0.5
    ]


def outside(svg: str) -> list[str]:
    """Labels that leave the picture."""
    left, top, width, height = (float(v) for v in parse(svg).get("viewBox", "").split())
    return [
        label.text
        for label in labels(svg)
        if label.left < left or label.right > left + width or not top <= label.baseline <= top + height
    ]
