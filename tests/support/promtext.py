"""A strict reader of Prometheus's text format 0.0.4, for what the textfile collector takes: no times, no duplicates."""

from __future__ import annotations

import re

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (NaN|[+-]Inf|[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_UNESCAPE = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_TYPES = {"counter", "gauge", "histogram", "summary", "untyped"}


def read(text):
    """Metric name -> {frozenset of labels: value}; raises ValueError at anything the format does not allow."""
    if text and not text.endswith("\n"):
        raise ValueError("the last line does not end")
    found, helped, typed, current = {}, set(), {}, ""
    for line in text.split("\n")[:-1]:
        if line.startswith("#"):
            kind, name, rest = _comment(line)
            if kind == "HELP":
                _once(name, helped)
                current = name
            else:
                if rest not in _TYPES or name in typed:
                    raise ValueError(line)
                typed[name] = rest
            continue
        match = _SAMPLE.fullmatch(line)
        if not match:
            raise ValueError(f"not a sample: {line!r}")
        name, labels, value = match.groups()
        if name != current or name not in typed or name not in helped:
            raise ValueError(f"{name} stands apart from its HELP and TYPE")
        key = frozenset(_labels(labels or ""))
        series = found.setdefault(name, {})
        if key in series:
            raise ValueError(f"{name} {sorted(key)} stands twice")
        series[key] = float(value)
    return found


def _comment(line):
    match = re.fullmatch(rf"# (HELP|TYPE) ({_NAME}) (.*)", line)
    if not match or re.search(r"\\[^\\n]", match[3]):
        raise ValueError(f"not a HELP or TYPE: {line!r}")
    return match.groups()


def _once(name, seen):
    if name in seen:
        raise ValueError(f"{name} is in two places")
    seen.add(name)


def _labels(text):
    names = set()
    for name, value in re.findall(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\.)*)"', text):
        if name in names or name.startswith("__"):
            raise ValueError(f"label {name}")
        names.add(name)
        yield name, re.sub(r"\\.", lambda m: _UNESCAPE[m[0]], value)
