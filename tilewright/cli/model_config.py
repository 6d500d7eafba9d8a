"""From a transformer's configuration file to the GEMMs and the attention of its layers.

Read are the names of a Hugging Face `config.json` (Llama's family, GPT-2, BERT) and their short forms. A layer is taken
as four products, each with the weight stored [n, k]: the joined query, key and value projection; the output
projection; the joined gate and up projection (or the single one of an ungated layer); the down projection.
"""

from collections.abc import Mapping

DECODE_ROWS = (1, 8, 16)  # sequences that produce one token each
PREFILL_TOKENS = 512
_NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim"),
    "num_heads": ("num_attention_heads", "num_heads", "n_head"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "num_layers": ("num_hidden_layers", "num_layers", "n_layer"),
    "max_position": ("max_position_embeddings", "max_position", "n_positions"),
    "head_dim": ("head_dim",),
    "sliding_window": ("sliding_window",),
}
_DTYPES = ("compute_dtype", "torch_dtype", "dtype")
_UNLIKE = ("num_experts", "num_local_experts", "n_routed_experts", "kv_lora_rank", "q_lora_rank")
_ENCODERS = frozenset({"bert", "roberta", "distilbert", "electra", "vit", "deit"})


class BadModel(ValueError):
    """The configuration does not describe a layer that can be listed; the message names the field."""


def is_model_config(data: object) -> bool:
    return isinstance(data, Mapping) and any(name in data for name in _NAMES["hidden_size"])


def tasks_of_model(config: Mapping[str, object]) -> list[dict[str, object]]:
    """Tasks of one layer at decode (1, 8 and 16 rows) and at a prefill, each weighted by the number of layers.

    The prefill has 512 tokens, or as many as the model has positions. Raises BadModel naming the field.
    """
    for name in _UNLIKE:
        if config.get(name):
            raise BadModel(f"{name}: layers of experts or latent attention are not listed: give a csv of their shapes")
    hidden, heads = _required(config, "hidden_size"), _required(config, "num_heads")
    kv_heads = _size(config, "num_kv_heads") or heads
    head_dim = _size(config, "head_dim") or _divided(hidden, heads)
    inner = _size(config, "intermediate_size") or 4 * hidden
    layers = _size(config, "num_layers") or 1
    tokens = min(PREFILL_TOKENS, _size(config, "max_position") or PREFILL_TOKENS)
    if heads % kv_heads:
        raise BadModel(f"num_key_value_heads: {heads} query heads are not a multiple of {kv_heads}")
    dtype = _dtype(config)
    products = (
        ((heads + 2 * kv_heads) * head_dim, hidden),
        (hidden, heads * head_dim),
        ((2 if _gated(config) else 1) * inner, hidden),
        (hidden, inner),
    )
    tasks: list[dict[str, object]] = [
        {"op": "gemm", "m": m, "n": n, "k": k, "dtype": dtype, "trans_b": True}
        for m in (*DECODE_ROWS, tokens)
        for n, k in products
    ]
    shared: dict[str, object] = {"op": "attention", "heads_q": heads, "heads_kv": kv_heads, "head_dim": head_dim}
    shared["dtype"] = dtype
    window = _size(config, "sliding_window")
    if window and window < tokens:
        shared["window_left"] = window - 1  # the window counts the query's own key, window_left does not
    causal = {} if config.get("model_type") in _ENCODERS else {"causal": True}
    tasks.append({**shared, **causal, "seq_q": tokens, "seq_kv": tokens})
    if causal:
        tasks.append({**shared, "causal": True, "seq_q": 1, "seq_kv": tokens})
    return [{"workload": workload, "weight": float(layers)} for workload in tasks]


def _required(config: Mapping[str, object], name: str) -> int:
    value = _size(config, name)
    if value is None:
        raise BadModel(f"{_NAMES[name][0]}: is missing")
    return value


def _size(config: Mapping[str, object], name: str) -> int | None:
    """The first of the field's spellings that is there; None where none is, or where it is null."""
    for spelling in _NAMES[name]:
        value = config.get(spelling)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadModel(f"{spelling}: must be a whole number of at least 1, got {value!r}")
        return value
    return None


def _divided(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise BadModel(f"hidden_size: {hidden} is not a multiple of {heads} heads, and head_dim is not given")
    return hidden // heads


def _dtype(config: Mapping[str, object]) -> str:
    """float32 where the file names none; a remark after the name is left out."""
    for name in _DTYPES:
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, str) or not value.split():
            raise BadModel(f"{name}: must be the name of a dtype, got {value!r}")
        return value.split()[0].removeprefix("torch.")
    return "float32"


def _gated(config: Mapping[str, object]) -> bool:
    if isinstance(config.get("mlp"), str):
        return str(config["mlp"]).startswith(("swiglu", "geglu"))
    act, family = config.get("hidden_act") or config.get("hidden_activation"), str(config.get("model_type"))
    return act in ("silu", "swish") or family.startswith("gemma")
