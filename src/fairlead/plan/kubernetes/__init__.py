"""Kubernetes manifests: objects as plain dicts, in the order to apply them. Pure.

variants()          every Variant a cluster may get, for tests that apply them
variant_of(wanted)  that of one cluster
RESOURCES           extended resources that the pods ask for
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.base.lazy import lazy

if TYPE_CHECKING:
    from fairlead.plan.kubernetes.variant import RESOURCES, Variant, variant_of, variants

__getattr__ = lazy(__name__, {"variant": ("RESOURCES", "Variant", "variant_of", "variants")})

__all__ = ["RESOURCES", "Variant", "variant_of", "variants"]
