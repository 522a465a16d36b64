"""How the kit says no."""

from __future__ import annotations


class KitFailure(AssertionError):
    """A plugin does not keep its word; the text is for its author, and no traceback of the kit's helps."""


class NotApplicable(Exception):
    """A check has nothing to look at here; the text says why."""
