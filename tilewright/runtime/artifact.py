"""An artifact: what was built for one candidate, as one content-addressed blob.

The blob is a zip with fixed time stamps and order, so that equal contents are equal bytes. `manifest.json` says what
it is; the other files are the code and, for reading, the TIR script and the assembly.
"""

import hashlib
import io
import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

SCHEMA = 1
MANIFEST = "manifest.json"
SCRIPT = "kernel.tir.py"
ASSEMBLY = "kernel.s"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip can hold
# What zipfile raises for bytes that are no archive, or one whose flags say that it is encrypted, split or packed by
# a method nobody knows.
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    lzma.LZMAError,
    KeyError,
    ValueError,
    EOFError,
    OSError,
    RuntimeError,
)
_REQUIRED = ("schema", "kind", "workload", "candidate", "target", "inputs", "outputs")


class ArtifactError(ValueError):
    """The artifact is damaged, of another version, or not for this machine. The message says what to do."""


class ForeignArtifact(ArtifactError):
    """The artifact is whole, but was made for another machine, or by a newer tilewright."""


def digest_of(data: bytes) -> str:
    """SHA-256 of an artifact's bytes: 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Artifact:
    """`manifest` is plain JSON; `files` maps a name to its contents (without the manifest).

    Manifest: `schema`; `kind` ("cpu-library" or "cubin"); `workload`, `candidate`, `target` in their own JSON;
    `environment` (what compiled it); `inputs` and `outputs`, lists of {name, shape, dtype} in calling order;
    `prepack`, a list of {operand, symbol, nbytes}; `launch`, what the loader of its kind needs besides; `files`, the
    SHA-256 of each file.
    """

    manifest: Mapping[str, object]
    files: Mapping[str, bytes]

    @property
    def kind(self) -> str:
        return str(self.manifest["kind"])

    @property
    def digest(self) -> str:
        return digest_of(self.to_bytes())

    def text(self, name: str) -> str | None:
        """A file as text (SCRIPT, ASSEMBLY), None where the artifact has none."""
        data = self.files.get(name)
        return None if data is None else data.decode()

    def to_bytes(self) -> bytes:
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(self.files.items())}
        manifest = json.dumps({**self.manifest, "files": hashes}, sort_keys=True, indent=1, allow_nan=False)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, data in ((MANIFEST, manifest.encode()), *sorted(self.files.items())):
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.create_system = 3
                archive.writestr(entry, data, compresslevel=6)
        return buffer.getvalue()

    @staticmethod
    def from_bytes(data: bytes, digest: str | None = None) -> "Artifact":
        """Raises ArtifactError when `data` is damaged, from a newer version, or does not hash to `digest`."""
        if digest is not None and digest_of(data) != digest:
            raise damaged(f"its hash is {digest_of(data)}, expected {digest}")
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                files = {name: archive.read(name) for name in archive.namelist()}
            manifest = json.loads(files.pop(MANIFEST))
        except _UNREADABLE as error:
            raise damaged(str(error)) from None
        _check_manifest(manifest, files)
        return Artifact(manifest, files)


def damaged(reason: str) -> ArtifactError:
    return ArtifactError(f"damaged artifact ({reason}): re-export it with `tilewright export`")


def _check_manifest(manifest: object, files: Mapping[str, bytes]) -> None:
    if not isinstance(manifest, dict):
        raise damaged("its manifest is not an object")
    schema = manifest.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        message = f"the artifact has schema {schema}, this tilewright reads up to {SCHEMA}: upgrade tilewright"
        raise ForeignArtifact(message)
    for name in _REQUIRED:
        if name not in manifest:
            raise damaged(f"its manifest has no {name}")
    hashes = manifest.get("files")
    if not isinstance(hashes, dict) or set(hashes) != set(files):
        raise damaged("its files are not those that its manifest lists")
    for name, data in files.items():
        if hashlib.sha256(data).hexdigest() != hashes[name]:
            raise damaged(f"{name} does not match its hash")
