"""Launch formulas."""

import pytest

from tilewright.runtime.formula import evaluate


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        (7, 7),
        ("m", 100),
        (["ceildiv", "m", 64], 2),
        (["mul", ["add", "m", 1], ["sub", "k", 3]], 101 * 61),
        (["min", "m", 132], 100),
        (["max", 1, ["div", "m", 300]], 1),
        (["mod", "m", 66], 34),
        (["if", ["sub", "m", 100], 5, 6], 6),
        (["if", ["sub", "m", 99], 5, 6], 5),
    ],
)
def test_values(formula: object, value: int) -> None:
    assert evaluate(formula, {"m": 100, "k": 64}) == value


@pytest.mark.parametrize("formula", ["q", ["pow", 2, 3], [], None, 1.5])
def test_what_is_no_formula_is_refused(formula: object) -> None:
    with pytest.raises(ValueError, match="formula"):
        evaluate(formula, {"m": 1})
