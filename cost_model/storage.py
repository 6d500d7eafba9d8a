"""A cost model as bytes, with what must match before it may be read again. Nothing is ever unpickled."""

import base64
import binascii
import dataclasses
import hashlib
import json

import xgboost

from cost_model.config import ModelConfig
from cost_model.features import FEATURE_SCHEMA
from cost_model.model import CostModel

_MAGIC = b"tilewright cost model 1\n"
_DIGEST_HEX = 64


def save(model: CostModel) -> bytes:
    """Magic line, SHA-256 of the body, body: JSON with the feature schema, XGBoost's version and both forests."""
    body = json.dumps(
        {
            "features": FEATURE_SCHEMA,
            "xgboost": xgboost.__version__,
            "names": model.names,
            "rows": model.rows,
            "score": _encode(model.score_trees),
            "validity": _encode(model.validity_trees),
        },
        separators=(",", ":"),
    ).encode()
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def load(blob: bytes, config: ModelConfig | None = None) -> tuple[CostModel, str | None]:
    """(model, None), or (an untrained model, why the stored one was not taken) on any damage or mismatch."""
    cold = CostModel(config or ModelConfig())
    digest, body = blob[len(_MAGIC) :][:_DIGEST_HEX], blob[len(_MAGIC) + _DIGEST_HEX + 1 :]
    if not blob.startswith(_MAGIC):
        return cold, "the stored cost model is not one of this format; starting cold"
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return cold, "the stored cost model is damaged (checksum differs); starting cold"
    data = json.loads(body)
    for name, mine in (("features", FEATURE_SCHEMA), ("xgboost", xgboost.__version__)):
        if data[name] != mine:
            return cold, f"the stored cost model has {name} {data[name]}, this is {mine}; starting cold"
    try:
        model = dataclasses.replace(
            cold,
            names=tuple(data["names"]),
            rows=int(data["rows"]),
            score_trees=_decode(data["score"]),
            validity_trees=_decode(data["validity"]),
        )
        if model.trained:
            model.predict([dict.fromkeys(model.names, 0.0)])
    except (xgboost.core.XGBoostError, binascii.Error, ValueError, TypeError) as fault:
        return cold, f"the stored cost model cannot be read ({fault}); starting cold"
    return model, None


def _encode(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)
