"""The inputs of every workload; for GEMM the reference against plain formulas and the rule against wrong arithmetic."""

import pytest
import torch

from search_space.workload import parse_workload
from workers.check import Acceptance, check
from workers.inputs import RECIPES, make_inputs, poisoned_outputs, torch_dtype
from workers.reference import reference


@pytest.fixture(autouse=True)
def _one_thread():
    """Tiny operations: a second thread only waits for the first."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def gemm(m, n, k, dtype="float32", **more):
    return parse_workload({"op": "gemm", "m": m, "n": n, "k": k, "dtype": dtype, **more})


def attention(dtype="float32", **more):
    shape = {"heads": 1, "seq": 4, "head_dim": 16, **more}
    return parse_workload({"op": "attention", "dtype": dtype, **shape})


def accumulate(a, b, dtype):
    """A @ B, k in order, rounded to `dtype` after each addition (products exact or nearly)."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=dtype)
    for p in range(a.shape[1]):
        total = (total.double() + a[:, p : p + 1].double() * b[p : p + 1].double()).to(dtype)
    return total


# --- inputs ---


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("workload", [gemm(5, 7, 9, "bfloat16", epilogue="bias", batch=2), attention(heads=2)])
def test_inputs_depend_on_workload_and_recipe_alone(workload, recipe):
    first, again = make_inputs(workload, recipe), make_inputs(workload, recipe)
    for operand in workload.inputs():
        tensor = first[operand.name]
        assert tuple(tensor.shape) == operand.shape
        assert tensor.dtype is torch_dtype(operand.dtype)
        assert tensor.is_contiguous()
        assert tensor.isfinite().all()
        assert torch.equal(tensor, again[operand.name])
    other = make_inputs(workload, next(r for r in RECIPES if r != recipe))
    assert not all(torch.equal(first[x], other[x]) for x in first)


def test_unknown_recipe():
    with pytest.raises(ValueError, match="recipe"):
        make_inputs(gemm(1, 1, 1), "easy")


@pytest.mark.parametrize("trans", [(False, False), (True, False), (False, True), (True, True)])
def test_adversarial_sums_cancel_in_every_layout(trans):
    workload = gemm(8, 9, 64, trans_a=trans[0], trans_b=trans[1])
    inputs = make_inputs(workload, "adversarial")
    a = (inputs["a"].T if trans[0] else inputs["a"]).double()
    b = (inputs["b"].T if trans[1] else inputs["b"]).double()
    assert (a @ b).abs().max() < 0.02 * (a.abs() @ b.abs()).min()
    assert (a[:, :32] @ b[:32]).min() > 20


def test_outputs_are_poisoned():
    assert poisoned_outputs(gemm(3, 4, 5, "float16"))["c"].isnan().all()


# --- GEMM ---


@pytest.mark.parametrize("epilogue", ["none", "bias", "bias+gelu", "bias+relu", "bias+silu"])
@pytest.mark.parametrize("trans", [(False, False), (True, True)])
@pytest.mark.parametrize("batch", [1, 3])
def test_gemm_reference(epilogue, trans, batch):
    workload = gemm(5, 7, 9, epilogue=epilogue, trans_a=trans[0], trans_b=trans[1], batch=batch)
    inputs = {name: x.double() for name, x in make_inputs(workload).items()}
    a = inputs["a"].transpose(-1, -2) if trans[0] else inputs["a"]
    b = inputs["b"].transpose(-1, -2) if trans[1] else inputs["b"]
    want = a @ b + inputs.get("bias", 0.0)
    activations = {"gelu": torch.nn.functional.gelu, "relu": torch.relu, "silu": torch.nn.functional.silu}
    want = activations.get(epilogue.partition("+")[2], lambda x: x)(want)
    got = reference(workload, make_inputs(workload))
    assert tuple(got.outputs["c"].shape) == workload.outputs()[0].shape
    assert torch.allclose(got.outputs["c"], want, rtol=1e-12, atol=1e-12)
    sums = a.abs() @ b.abs() + inputs.get("bias", torch.zeros(())).abs()
    assert torch.allclose(got.magnitudes["c"]["sums"].double(), sums, rtol=1e-5)


def test_gemm_reference_in_blocks(monkeypatch):
    workload = gemm(50, 40, 30)
    whole = reference(workload, make_inputs(workload))
    monkeypatch.setattr("workers.reference._BLOCK_ELEMENTS", 200)
    blocks = reference(workload, make_inputs(workload))
    assert torch.allclose(blocks.outputs["c"], whole.outputs["c"], rtol=1e-13, atol=1e-13)
    assert torch.allclose(blocks.magnitudes["c"]["sums"], whole.magnitudes["c"]["sums"])


@pytest.mark.parametrize("k", [1, 3, 16, 257, 2048])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_float32_accumulation_is_accepted_in_any_order(k, dtype, recipe):
    workload = gemm(16, 24, k, dtype)
    inputs = make_inputs(workload, recipe)
    rule = Acceptance(workload, reference(workload, inputs))
    in_order = accumulate(inputs["a"], inputs["b"], torch.float32).to(torch_dtype(dtype))
    assert rule.check({"c": in_order}).ok
    if dtype == "float32":
        assert rule.check({"c": inputs["a"] @ inputs["b"]}).ok
    order = torch.randperm(k)
    shuffled = accumulate(inputs["a"][:, order], inputs["b"][order], torch.float32).to(torch_dtype(dtype))
    assert rule.check({"c": shuffled}).ok


@pytest.mark.parametrize("k", [16, 64, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("accumulator", [torch.float16, torch.bfloat16])
def test_16_bit_accumulation_is_rejected(k, dtype, accumulator):
    workload = gemm(16, 24, k, dtype)
    verdicts = []
    for recipe in RECIPES:
        inputs = make_inputs(workload, recipe)
        total = accumulate(inputs["a"], inputs["b"], accumulator).to(torch_dtype(dtype))
        verdicts.append(check(workload, {"c": total}, reference(workload, inputs)).ok)
    assert not all(verdicts)
    assert not verdicts[RECIPES.index("adversarial")]


@pytest.mark.parametrize("k", [64, 1024, 4096])
def test_float32_operands_rounded_to_tf32_or_bf16_are_rejected(k):
    workload = gemm(64, 64, k)
    inputs = make_inputs(workload, "adversarial")
    rule = Acceptance(workload, reference(workload, inputs))

    def shorter(x):  # 10 bits of mantissa, as TF32
        return (x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)

    assert not rule.check({"c": shorter(inputs["a"]) @ shorter(inputs["b"])}).ok
    assert not rule.check({"c": inputs["a"].bfloat16().float() @ inputs["b"].bfloat16().float()}).ok


def test_all_ones_in_float16():
    """cases O3: a float16 accumulator stops at 2048, where 1 is half a unit in the last place."""
    workload = gemm(16, 16, 4096, "float16")
    ones = {"a": torch.ones(16, 4096).half(), "b": torch.ones(4096, 16).half()}
    right = reference(workload, ones)
    assert (right.outputs["c"] == 4096).all()
    stalled = accumulate(ones["a"], ones["b"], torch.float16)
    assert (stalled == 2048).all()
    verdict = check(workload, {"c": stalled}, right)
    assert not verdict.ok
    assert "c[0, 0] is 2048, expected 4096" in verdict.message
    assert "256 of 256 elements" in verdict.message
    assert check(workload, {"c": torch.full((16, 16), 4096.0).half()}, right).ok
    one_off = torch.full((16, 16), 4096.0).half()
    one_off[15, 15] = 4100  # the next float16
    verdict = check(workload, {"c": one_off}, right)
    assert not verdict.ok or verdict.worst > 0.9


def test_what_is_missing_or_not_a_number_is_wrong():
    workload = gemm(6, 5, 4)
    inputs = make_inputs(workload)
    right = reference(workload, inputs)
    c = (inputs["a"].double() @ inputs["b"].double()).float()
    assert check(workload, {"c": c}, right).ok
    for bad in (float("nan"), float("inf"), -float("inf"), 1e30):
        wrong = c.clone()
        wrong[5, 4] = bad
        verdict = check(workload, {"c": wrong}, right)
        assert not verdict.ok
        assert "c[5, 4]" in verdict.message
        assert "1 of 30" in verdict.message
    assert not check(workload, poisoned_outputs(workload), right).ok
    assert not check(workload, {"c": c[:5]}, right).ok
    swapped = c.clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    assert not check(workload, {"c": swapped}, right).ok


def test_nan_never_equals_nan():
    workload = gemm(2, 2, 2)
    inputs = {"a": torch.tensor([[float("nan"), 0.0], [1.0, 1.0]]), "b": torch.eye(2)}
    right = reference(workload, inputs)
    assert not check(workload, {"c": inputs["a"] @ inputs["b"]}, right).ok


@pytest.mark.parametrize("epilogue", ["bias", "bias+gelu", "bias+relu", "bias+silu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_epilogues_of_torch_are_accepted_and_another_gelu_is_not(epilogue, dtype):
    workload = gemm(64, 64, 128, dtype, epilogue=epilogue)
    inputs = make_inputs(workload)
    rule = Acceptance(workload, reference(workload, inputs))
    x = inputs["a"].float() @ inputs["b"].float() + inputs["bias"].float()
    f = torch.nn.functional
    right = {"bias": x, "bias+gelu": f.gelu(x), "bias+relu": f.relu(x), "bias+silu": f.silu(x)}[epilogue]
    assert rule.check({"c": right.to(torch_dtype(dtype))}).ok
    assert not rule.check({"c": (right + 0.05).to(torch_dtype(dtype))}).ok
    if epilogue == "bias+gelu" and dtype == "float32":
        assert not rule.check({"c": f.gelu(x, approximate="tanh")}).ok
