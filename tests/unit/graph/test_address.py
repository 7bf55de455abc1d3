"""Op addresses: the rule, and taking them apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.graph.address import (
    Addresser,
    output_address,
    short_name,
    split_output,
    unit_of,
)

UNITS = st.from_regex(r"[a-z0-9_]+(\.[a-z0-9_]+){0,3}", fullmatch=True)
OPS = st.from_regex(r"aten\.[a-z_]+\.(default|Tensor|Scalar)", fullmatch=True)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("aten.addmm.default", "addmm"),
        ("aten.mul.Tensor", "mul.Tensor"),
        ("aten.relu_.default", "relu_"),
        ("prims.sum.default", "prims.sum"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


def test_ordinals_count_by_unit_and_op_over_all_calls() -> None:
    addresser = Addresser()
    ran = [("a.b", "aten.mul.Tensor"), ("", "aten.mul.Tensor"), ("a.b", "aten.add.Tensor")]
    assert [addresser.next(*op) for op in ran + ran] == [
        "a.b/mul.Tensor/0",
        "./mul.Tensor/0",
        "a.b/add.Tensor/0",
        "a.b/mul.Tensor/1",
        "./mul.Tensor/1",
        "a.b/add.Tensor/1",
    ]


@given(st.lists(st.tuples(UNITS, OPS)))
def test_addresses_are_unique(ran: list[tuple[str, str]]) -> None:
    addresser = Addresser()
    addresses = [addresser.next(*op) for op in ran]
    assert len(set(addresses)) == len(addresses)
    assert [unit_of(address) for address in addresses] == [unit for unit, _ in ran]


@given(UNITS, OPS, st.integers(0, 20))
def test_outputs(unit: str, op: str, output: int) -> None:
    address = Addresser().next(unit, op)
    assert split_output(output_address(address, output)) == (address, output)
    assert unit_of(output_address(address, output)) == unit


def test_the_first_output_is_the_op_itself() -> None:
    assert output_address("a/mul.Tensor/0", 0) == "a/mul.Tensor/0"
    assert split_output("odd#1unit/mul.Tensor/0") == ("odd#1unit/mul.Tensor/0", 0)


def test_a_broken_output_number() -> None:
    for address in ("a/mul.Tensor/0#x", "a/mul.Tensor/0#-1", "a/mul.Tensor/0#"):
        with pytest.raises(ValueError, match="no number"):
            split_output(address)
