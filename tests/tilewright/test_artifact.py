"""The artifact's container: deterministic, content-addressed, and never half read."""

import io
import json
import random
import zipfile

import pytest

import tilewright
from tilewright.runtime import Artifact, ArtifactError, digest_of, register_kind
from tilewright.runtime.artifact import SCHEMA

MANIFEST = {
    "schema": SCHEMA,
    "kind": "test-kind",
    "workload": {"op": "gemm"},
    "candidate": {},
    "target": {},
    "inputs": [],
    "outputs": [],
}


def test_round_trip_and_determinism():
    files = {"b.txt": b"2", "a.bin": bytes(range(256))}
    blob = Artifact(MANIFEST, files).to_bytes()
    back = Artifact.from_bytes(blob, digest_of(blob))
    assert dict(back.files) == files
    assert back.to_bytes() == blob
    assert back.digest == digest_of(blob)
    reordered = Artifact(dict(reversed(MANIFEST.items())), dict(reversed(files.items())))
    assert reordered.to_bytes() == blob
    assert back.text("b.txt") == "2"
    assert back.text("none") is None


def test_every_damaged_byte_is_noticed_under_its_digest():
    blob = Artifact(MANIFEST, {"a": b"contents"}).to_bytes()
    digest = digest_of(blob)
    for i in range(len(blob)):
        bad = bytearray(blob)
        bad[i] ^= 0x40
        with pytest.raises(ArtifactError, match="damaged artifact"):
            Artifact.from_bytes(bytes(bad), digest)


@pytest.mark.parametrize("cut", [0, 1, 10, 50, 100, -1, -10])
def test_truncated(cut):
    blob = Artifact(MANIFEST, {"a": b"contents" * 50}).to_bytes()
    with pytest.raises(ArtifactError, match=r"damaged artifact .* re-export"):
        Artifact.from_bytes(blob[:cut])


def test_random_bytes_and_random_damage_are_named_or_harmless():
    """Without a digest to compare with: an artifact is refused as damaged, or what was read is what was written."""
    rng = random.Random(11)
    files = {"a": b"contents" * 40, "b": bytes(range(256))}
    blob = Artifact(MANIFEST, files).to_bytes()
    refused: list[str] = []
    for _ in range(1500):
        bad = bytearray(blob)
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(len(bad))
            if rng.random() < 0.7:
                bad[at] = rng.randrange(256)
            else:
                del bad[at : at + rng.randrange(1, 9)]
        try:
            read = Artifact.from_bytes(bytes(bad))
        except ArtifactError as fault:
            refused.append(str(fault))
        else:
            assert dict(read.files) == files
    assert len(refused) > 1000
    assert all("damaged artifact" in message for message in refused)
    for _ in range(300):
        with pytest.raises(ArtifactError, match="damaged artifact"):
            Artifact.from_bytes(rng.randbytes(rng.randrange(2000)))


def rewritten(change, **files):
    blob = Artifact(MANIFEST, {"a": b"contents"}).to_bytes()
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(entries["manifest.json"])
    change(manifest)
    entries["manifest.json"] = json.dumps(manifest).encode()
    entries |= files
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize(
    ("change", "files", "message"),
    [
        (lambda m: m.pop("workload"), {}, "has no workload"),
        (lambda m: m.update(schema=SCHEMA + 1), {}, "upgrade tilewright"),
        (lambda m: m["files"].update(a="0" * 64), {}, "a does not match its hash"),
        (lambda m: None, {"extra": b"x"}, "not those that its manifest lists"),
        (lambda m: m.pop("files"), {}, "not those that its manifest lists"),
    ],
)
def test_a_manifest_that_cannot_be_right(change, files, message):
    with pytest.raises(ArtifactError, match=message):
        Artifact.from_bytes(rewritten(change, **files))


def test_kinds_are_a_registry(tmp_path):
    blob = Artifact(MANIFEST, {}).to_bytes()
    with pytest.raises(ArtifactError, match="unknown kind of artifact 'test-kind'"):
        tilewright.load(blob)
    seen = []
    register_kind("test-kind", lambda artifact: seen.append(artifact.digest) or "kernel")
    assert tilewright.load(blob) == "kernel"
    assert seen == [digest_of(blob)]


def test_paths(tmp_path):
    with pytest.raises(FileNotFoundError):
        tilewright.load(tmp_path / "none.tilewright")
    with pytest.raises(ArtifactError, match="holds 0 artifacts"):
        tilewright.load(tmp_path)
    (tmp_path / "empty.tilewright").write_bytes(b"")
    with pytest.raises(ArtifactError, match="damaged artifact"):
        tilewright.load(tmp_path)
