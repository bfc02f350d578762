"""Parts of the protocols by themselves: tensors of any bytes and JSON, texts that come in pieces, and which token is taken."""

import json

import ml_dtypes
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rekindle.inference import ByteTokenizer, TensorSpec
from rekindle.inference.fields import chat, completion
from rekindle.inference.http import Refused
from rekindle.inference.messages import from_bytes, from_json, halves_of, to_bytes, to_json, widened
from rekindle.inference.sampling import Sampler, Sampling
from rekindle.inference.tensors import DATATYPES
from rekindle.inference.text import Growing, Stops

dtypes = st.sampled_from(sorted(DATATYPES))
shapes = st.lists(st.integers(0, 4), max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@settings(deadline=None)
@given(dtypes, shapes, st.lists(values, max_size=6) | values)
def test_any_json_is_a_tensor_or_refused(dtype, shape, data):
    spec = TensorSpec(dtype, (None,) * len(shape))
    try:
        array = from_json("x", spec, shape, data)
    except Refused as refused:
        assert refused.status == 400 and "'x'" in refused.message
        return
    assert list(array.shape) == shape
    # What was taken says the same again.
    try:
        again = to_json("x", spec, array)
    except Refused as refused:
        assert "JSON cannot have" in refused.message and array.dtype.kind == "f"
        return
    assert numpy.array_equal(from_json("x", spec, shape, json.loads(json.dumps(again))), array)


@settings(deadline=None)
@given(dtypes, shapes, st.binary(max_size=64))
def test_any_bytes_are_a_tensor_or_refused(dtype, shape, data):
    spec = TensorSpec(dtype, (None,) * len(shape))
    try:
        array = from_bytes("x", spec, shape, memoryview(data))
    except Refused as refused:
        assert refused.status == 400 and "'x'" in refused.message
        return
    assert list(array.shape) == shape
    if dtype not in ("bfloat16", "bool"):
        assert to_bytes(spec, array) == data


@settings(deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_bfloat16_is_rounded_as_others_do(numbers):
    array = numpy.array(numbers, "float32")
    expected = array.astype(ml_dtypes.bfloat16)
    found = widened(halves_of(array))
    assert numpy.array_equal(found, expected.astype("float32"), equal_nan=True)


@settings(deadline=None)
@given(st.text(max_size=30))
def test_a_text_in_pieces_is_the_text(text):
    tokenizer = ByteTokenizer()
    growing, pieces = Growing(tokenizer), []
    for token in tokenizer.encode(text):
        pieces.append(growing.add(token))
    # A character is there once it is whole.
    assert "".join([*pieces, growing.new(is_last=True)]) == text
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


@settings(deadline=None)
@given(st.lists(st.text("ab.", max_size=4), max_size=8), st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3))
def test_a_text_ends_before_the_first_stop(pieces, stops):
    text, stopping, shown, is_over = "".join(pieces), Stops(stops), "", False
    for piece in pieces:
        more, is_over = stopping.add(piece)
        shown += more
        if is_over:
            break
    if not is_over:
        shown += stopping.rest()
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        assert shown == text and not is_over
    else:
        # One that is whole in an earlier piece ends it there, whatever a later piece would have completed.
        assert is_over and text.startswith(shown) and any(text.startswith(stop, len(shown)) for stop in stops)
        assert not any(stop in shown for stop in stops)


@settings(deadline=None)
@given(st.lists(st.floats(-20, 20), min_size=1, max_size=12), st.floats(0, 2), st.floats(0, 1), st.integers(0, 99))
def test_a_token_is_one_of_the_likeliest(logits, temperature, top_p, seed):
    sampling = Sampling(temperature, top_p, seed, logprobs=3)
    array = numpy.array([*logits, 1e9], "float32")
    # What the tokenizer does not know is never taken.
    found = Sampler(sampling, len(logits)).take(array)
    assert found == Sampler(sampling, len(logits)).take(array) and 0 <= found.token < len(logits)
    weights = numpy.exp((array[:-1].astype("float64") - array[:-1].max()) / max(temperature, 1e-5))
    above = weights[weights > weights[found.token]].sum()
    assert above <= top_p * weights.sum() * (1 + 1e-9) + 1e-12 and found.logprob <= found.most_likely[0][1]


def test_logits_that_are_no_numbers_are_an_error():
    with pytest.raises(FloatingPointError, match="look at its weights"):
        Sampler(Sampling(), 2).take(numpy.array([1, numpy.nan]))


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["prompt", "messages", "max_tokens", "temperature", "stop", "seed", "n", "logprobs", "stream", "x"]), values))
def test_any_request_is_asked_or_refused(document):
    for parse in (completion, chat):
        try:
            asked = parse(document, ByteTokenizer())
        except Refused as refused:
            assert refused.status == 400 and refused.field
            continue
        assert asked.prompt and all(isinstance(token, int) for token in asked.prompt)
