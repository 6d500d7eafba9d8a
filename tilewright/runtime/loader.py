"""From an artifact to a callable. Each kind of artifact has a loader of its own."""

import importlib
import os
from collections.abc import Callable
from pathlib import Path

from tilewright.runtime.artifact import Artifact, ArtifactError, ForeignArtifact
from tilewright.runtime.kernel import Kernel

Loader = Callable[[Artifact], Kernel]
# Named, not imported: a machine without a GPU never loads the CUDA half.
_KINDS: dict[str, str | Loader] = {
    "cpu-library": "tilewright.runtime.cpu:CpuKernel",
    "cubin": "tilewright.runtime.cuda:CudaKernel",
}
ARTIFACT_SUFFIX = ".tilewright"


def register_kind(kind: str, loader: Loader) -> None:
    """Make `load` understand another kind of artifact."""
    _KINDS[kind] = loader


def load(source: str | os.PathLike[str] | bytes | Artifact, digest: str | None = None) -> Kernel:
    """The kernel in `source`: an artifact's bytes, its file, or the folder that `tilewright export` wrote.

    `digest` (64 hex digits of SHA-256) is checked where given. Raises FileNotFoundError, ArtifactError when the
    artifact is damaged, ForeignArtifact when it is not for this machine.
    """
    artifact = source if isinstance(source, Artifact) else Artifact.from_bytes(_read(source), digest)
    entry = _KINDS.get(artifact.kind)
    if entry is None:
        raise ForeignArtifact(f"unknown kind of artifact {artifact.kind!r}: upgrade tilewright")
    if isinstance(entry, str):
        module, _, name = entry.partition(":")
        loader: Loader = getattr(importlib.import_module(module), name)
        return loader(artifact)
    return entry(artifact)


def _read(source: str | os.PathLike[str] | bytes) -> bytes:
    if isinstance(source, bytes):
        return source
    path = Path(source)
    if not path.is_dir():
        return path.read_bytes()
    found = sorted(path.glob(f"*{ARTIFACT_SUFFIX}")) or sorted(path.glob(f"*/*{ARTIFACT_SUFFIX}"))
    if len(found) != 1:
        raise ArtifactError(f"{path} holds {len(found)} artifacts (*{ARTIFACT_SUFFIX}): name the file")
    return found[0].read_bytes()
