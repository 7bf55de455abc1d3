"""Any damaged document ends in a `DocumentError`: never another exception, a hang, or nonsense."""

from __future__ import annotations

import json
from typing import Any

import pytest
from document_samples import PLAN, PROFILE, Document
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from planner.documents import Plan, Profile
from planner.errors import DocumentError

KINDS: st.SearchStrategy[Document] = st.sampled_from([PLAN, PROFILE])

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**30), 10**30),
    st.sampled_from([-1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["planner.plan", "planner.profile", "optimal", "activation", "forward"]),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)


def reads_or_refuses(kind: type[Document], text: str) -> None:
    """Read a text; what comes out must be whole, and an error must be ours and short."""
    try:
        document: Document = kind.from_json(text)
    except DocumentError as error:
        assert len(str(error)) < 2000
        return
    assert kind.from_json(document.to_json()) == document
    assert str(document)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a parsed document."""
    here = [path] if path else []
    if isinstance(value, (dict, list)):
        keys = value.items() if isinstance(value, dict) else enumerate(value)
        here += [place for key, item in keys for place in places(item, (*path, key))]
    return here


@st.composite
def damaged(draw: st.DrawFn) -> tuple[type[Document], str]:
    """Draw a document of which one to three values are replaced, removed or doubled."""
    document = draw(KINDS)
    content = json.loads(document.to_json())
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(places(content)))
        place = content
        for key in way:
            place = place[key]
        change = draw(st.sampled_from(["replace", "remove", "double"]))
        if change == "replace":
            place[last] = draw(JSON)
        elif change == "remove":
            del place[last]
        elif isinstance(place, list):
            place.insert(last, place[last])
        else:
            place[draw(st.text(max_size=5))] = place[last]
    return type(document), json.dumps(content)


@given(damaged())
@examples(300)
def test_damaged_values(case: tuple[type[Document], str]) -> None:
    reads_or_refuses(*case)


@given(KINDS, st.data())
@examples(100)
def test_truncated_text(document: Document, data: st.DataObject) -> None:
    text = document.to_json()
    cut = data.draw(st.integers(0, len(text) - 3))  # without the last brace
    with pytest.raises(DocumentError):
        type(document).from_json(text[:cut])


@given(KINDS, st.data())
@examples(150)
def test_text_with_pieces_moved_doubled_or_overwritten(
    document: Document, data: st.DataObject
) -> None:
    text = document.to_json()
    a, b = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    piece = data.draw(st.sampled_from(["", text[a:b] * 2, "NaN", "1e999", "null", "[", "{", '"']))
    reads_or_refuses(type(document), text[:a] + piece + text[b:])


@given(KINDS, st.data())
@examples(50)
def test_lines_in_another_order(document: Document, data: st.DataObject) -> None:
    lines = data.draw(st.permutations(document.to_json().splitlines()))
    reads_or_refuses(type(document), "\n".join(lines))


@given(KINDS, st.randoms(use_true_random=False))
@examples(50)
def test_keys_in_any_order_mean_the_same(document: Document, random: Any) -> None:
    assert type(document).from_json(
        json.dumps(shuffled(json.loads(document.to_json()), random))
    ) == (document)


def shuffled(value: Any, random: Any) -> Any:
    """Return the value with the keys of every object in another order."""
    if isinstance(value, list):
        return [shuffled(item, random) for item in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    random.shuffle(keys)
    return {key: shuffled(value[key], random) for key in keys}


@given(st.sampled_from([Plan, Profile]), st.text(max_size=40) | JSON.map(json.dumps))
@examples(200)
def test_any_text(kind: type[Document], text: str) -> None:
    with pytest.raises(DocumentError):
        kind.from_json(text)


@given(st.sampled_from([Plan, Profile]), st.integers(1, 300_000), st.sampled_from("[{"))
@examples(20)
def test_deep_nesting(kind: type[Document], depth: int, bracket: str) -> None:
    opening, closing = ("[", "]") if bracket == "[" else ('{"a":', "}")
    for text in (opening * depth, opening * depth + "1" + closing * depth):
        with pytest.raises(DocumentError):
            kind.from_json(text)


@given(KINDS, st.integers(100, 100_000))
@examples(20)
def test_deep_nesting_inside_a_document(document: Document, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    text = document.to_json().replace('"0123abcd"', nested)
    with pytest.raises(DocumentError):
        type(document).from_json(text)


@given(KINDS, st.integers(2, 10**30))
@examples(50)
def test_a_future_version_is_refused_before_anything_else(document: Document, version: int) -> None:
    content = {"kind": json.loads(document.to_json())["kind"], "schema_version": version}
    with pytest.raises(DocumentError) as raised:
        type(document).from_json(json.dumps(content))
    assert "64 bits" in raised.value.numbers or raised.value.field == "schema_version"
