"""The verification kit under the name that plugin authors import: `from switchgear.testing import ...`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core.testing import *  # noqa: F403  # what `__all__` names there
    from .core.testing import __all__ as __all__
else:
    from .core.testing import __all__, __getattr__  # noqa: F401  # each name is imported when first used
