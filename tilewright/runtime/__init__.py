"""The one loader and launcher of artifacts: what is measured is what is served. Needs numpy, never tvm."""

from tilewright.runtime.artifact import Artifact, ArtifactError, ForeignArtifact, digest_of
from tilewright.runtime.kernel import Kernel, Packed
from tilewright.runtime.loader import load, register_kind
from tilewright.runtime.operands import OperandSpec

__all__ = [
    "Artifact",
    "ArtifactError",
    "ForeignArtifact",
    "Kernel",
    "OperandSpec",
    "Packed",
    "digest_of",
    "load",
    "register_kind",
]
