import hashlib
import json

import numpy as np
import pytest

from cost_model import storage
from cost_model.dataset import Row, make_dataset
from cost_model.model import CostModel

ROWS = [Row({"a": float(i), "b": float(i % 3)}, (i + 1) / 40, "task") for i in range(40)]
FAILURES = [Row({"a": float(i), "b": 9.0}, None, "task") for i in range(10)]


def trained() -> CostModel:
    return CostModel().fit(make_dataset([*ROWS, *FAILURES]))


def rewritten(blob: bytes, **changes: object) -> bytes:
    """The same file with fields of its body changed and its checksum made right again."""
    magic, _, body = blob.split(b"\n", 2)
    body = json.dumps({**json.loads(body), **changes}).encode()
    return magic + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def test_round_trip():
    model = trained()
    loaded, warning = storage.load(storage.save(model))
    assert warning is None
    assert loaded == model
    features = [r.features for r in (*ROWS, *FAILURES)]
    np.testing.assert_array_equal(loaded.predict(features).merit, model.predict(features).merit)
    assert loaded.rows == 50


def test_an_untrained_model_round_trips():
    loaded, warning = storage.load(storage.save(CostModel()))
    assert (loaded, warning) == (CostModel(), None)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"features": "0-other"}, "features 0-other"),
        ({"xgboost": "1.0.0"}, "xgboost 1.0.0"),
        ({"score": "not base64!"}, "cannot be read"),
        ({"score": "AAAA"}, "cannot be read"),
        ({"rows": "many"}, "cannot be read"),
    ],
)
def test_a_mismatch_is_a_warning_and_a_cold_start(changes: dict[str, object], named: str):
    model, warning = storage.load(rewritten(storage.save(trained()), **changes))
    assert not model.trained
    assert warning is not None
    assert named in warning
    assert "starting cold" in warning


def test_any_damage_is_a_warning_and_a_cold_start():
    blob = storage.save(trained())
    damaged = [b"", b"garbage", blob[:10], blob[:100], blob[:-1], blob + b" ", blob[: len(blob) // 2]]
    flipped = bytearray(blob)
    flipped[len(blob) // 2] ^= 1
    for case in (*damaged, bytes(flipped)):
        model, warning = storage.load(case)
        assert not model.trained
        assert warning is not None
