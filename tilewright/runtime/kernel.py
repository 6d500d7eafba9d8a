"""What `tilewright.load` returns, whatever the device."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.artifact import Artifact
from tilewright.runtime.operands import OperandSpec


@dataclass(frozen=True, eq=False)
class Packed:
    """An operand packed ahead by `Kernel.prepack`, valid for that kernel's artifact alone.

    `address` is where the packed bytes begin; `owner` keeps them alive.
    """

    operand: str
    kernel: str  # digest of the artifact
    address: int
    nbytes: int
    owner: object


class Kernel(ABC):
    """A loaded artifact. Calls are thread-safe and release the interpreter lock while the kernel runs.

    `inputs` and `outputs` describe the operands in calling order.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.digest = artifact.digest
        self.inputs = _operands(artifact.manifest["inputs"])
        self.outputs = _operands(artifact.manifest["outputs"])

    @property
    def manifest(self) -> Mapping[str, object]:
        return self.artifact.manifest

    @property
    def prepacked(self) -> tuple[str, ...]:
        """Names of the inputs that must be packed ahead with `prepack`."""
        return tuple(str(p["operand"]) for p in prepack_entries(self.artifact))

    @abstractmethod
    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        """Run on torch tensors or numpy arrays.

        Inputs stand in the order of `inputs`, with a `Packed` in the place of each prepacked one. Returns the output
        (a tuple when there are several), newly made unless `out` (a tensor, or a tuple of them) is given, which must
        not overlap an input. Raises TypeError or ValueError naming the operand that does not fit.
        """

    @abstractmethod
    def prepack(self, value: Any, operand: str | None = None) -> Packed:
        """Pack a constant operand once, for many calls. `operand` may be left out where only one is packed."""

    @abstractmethod
    def launcher(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        """Check the operands once and bind them: what a timing loop calls. The tensors are kept alive."""


def prepack_entries(artifact: Artifact) -> list[Mapping[str, Any]]:
    entries = artifact.manifest.get("prepack") or []
    assert isinstance(entries, list)
    return entries


def _operands(entries: object) -> tuple[OperandSpec, ...]:
    assert isinstance(entries, list)
    return tuple(OperandSpec.from_json(e) for e in entries)
