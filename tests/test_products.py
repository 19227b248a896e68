"""What an attention multiplied is seen whichever way it multiplies; other products are not taken for one."""

import pytest
import torch
import torch.nn.functional as F

from streamlens.hooks.products import watched_products

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 5, 4


@pytest.fixture
def operands():
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(BATCH, HEADS, LENGTH, WIDTH, generator=draw) for _ in range(3)]


def fused(query, key, value):
    return F.scaled_dot_product_attention(query, key, value=value, is_causal=True)


def stepwise(query, key, value):
    return (query @ key.transpose(-1, -2)).mul(0.5).softmax(-1) @ value


def by_name(query, key, value):
    scores = torch.matmul(query, key.transpose(2, 3))
    return torch.matmul(input=F.softmax(scores, dim=-1), other=value)


def added_to_a_bias(query, key, value):
    """As Bloom: batch and heads are one axis."""
    query, key, value = (t.flatten(0, 1) for t in (query, key, value))
    bias = torch.zeros(BATCH * HEADS, LENGTH, LENGTH)
    scores = bias.baddbmm(batch1=query, batch2=key.transpose(1, 2), beta=1.0, alpha=0.5)
    return torch.bmm(scores.softmax(-1), value)


def with_a_sink(query, key, value):
    """As GPT-OSS: a share of the probability goes to nothing."""
    scores = torch.cat([query @ key.transpose(-1, -2), torch.zeros(BATCH, HEADS, LENGTH, 1)], -1)
    return scores.softmax(-1)[..., :-1] @ value


@pytest.mark.parametrize("attend", [fused, stepwise, by_name, added_to_a_bias, with_a_sink])
def test_query_key_and_value_are_seen(operands, attend):
    wanted = attend(*operands)
    with watched_products() as found:
        again = attend(*operands)
    assert torch.equal(again, wanted)
    (seen,) = found
    for given, kept in zip(operands, (seen.query, seen.key, seen.value), strict=True):
        assert torch.equal(kept.reshape(given.shape), given)


def test_what_is_kept_is_a_copy(operands):
    query = operands[0].clone()
    with watched_products() as found:
        fused(query, *operands[1:])
    query.zero_()
    assert torch.equal(found[0].query, operands[0])


def test_products_without_a_pattern_are_no_attention(operands):
    query, key, value = operands
    with watched_products() as found:
        (query @ key.transpose(-1, -2)) @ value  # linear attention
        torch.ones(3, 3) @ torch.ones(3, 3)
        query.mul(2) @ torch.ones(WIDTH, WIDTH)
    assert not found


def test_nothing_is_watched_afterwards(operands):
    with pytest.raises(RuntimeError, match="midway"), watched_products() as found:
        raise RuntimeError("midway")
    fused(*operands)
    assert not found
