"""Full-precision training of models far larger than the device's memory: layers stream through it.

Names are loaded when they are first used: knowing the room needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.base.lazy import lazy

if TYPE_CHECKING:
    from fairlead.train.config import Config, load
    from fairlead.train.engine import Engine
    from fairlead.train.layout import ParamGroup
    from fairlead.train.model import random_values, skeleton, take_apart
    from fairlead.train.optimizer import SGD, AdamW, rate
    from fairlead.train.planning import estimate
    from fairlead.train.schedule import Schedule, hazards
    from fairlead.train.session import Progress, Session
    from fairlead.train.settings import Result, Settings, seed_of

__getattr__ = lazy(
    __name__,
    {
        "config": ("Config", "load"),
        "engine": ("Engine",),
        "layout": ("ParamGroup",),
        "model": ("random_values", "skeleton", "take_apart"),
        "optimizer": ("SGD", "AdamW", "rate"),
        "schedule": ("Schedule", "hazards"),
        "planning": ("estimate",),
        "session": ("Progress", "Session"),
        "settings": ("Result", "Settings", "seed_of"),
    },
)

__all__ = [
    "SGD",
    "AdamW",
    "Config",
    "Engine",
    "ParamGroup",
    "Progress",
    "Result",
    "Schedule",
    "Session",
    "Settings",
    "estimate",
    "hazards",
    "load",
    "random_values",
    "rate",
    "seed_of",
    "skeleton",
    "take_apart",
]
