"""The functions of KQL, in families. Importing this fills the catalogue (`registry.py`)."""

from fairlead.logs.kql.functions import (  # noqa: F401
    aggregates,
    choices,
    conversions,
    dates,
    dynamics,
    nets,
    numbers,
    operators,
    series,
    strings,
)
