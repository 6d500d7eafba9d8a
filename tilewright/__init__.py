"""What a user installs beside PyTorch: the client, the command line, and the loader of tuned kernels.

Importing this package loads nothing heavy: names below are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.runtime import Artifact as Artifact
    from tilewright.runtime import ArtifactError as ArtifactError
    from tilewright.runtime import load as load

_LAZY = dict.fromkeys(("load", "Artifact", "ArtifactError"), "tilewright.runtime")
__all__ = ["Artifact", "ArtifactError", "load"]


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
