"""Under pytest every annotated signature and field is checked, shapes included: a wrong one raises here."""

import pytest
import torch
from jaxtyping import TypeCheckError

from streamlens.carries import FrozenNorm
from streamlens.sites import Site

ONES = torch.ones(4, dtype=torch.float64)


def test_right_shapes_pass():
    norm = FrozenNorm(gain=ONES, bias=ONES, centred=True, scale=torch.ones(2, 3))
    assert norm.linear(torch.ones(5, 2, 3, 4)).shape == (5, 2, 3, 4)


def test_a_wrong_shape_of_a_field_raises():
    with pytest.raises(TypeCheckError, match="gain"):
        FrozenNorm(gain=torch.ones(4, 1), bias=None, centred=True, scale=torch.ones(2, 3))


def test_two_fields_that_disagree_raise():
    with pytest.raises(TypeCheckError, match="bias"):
        FrozenNorm(gain=ONES, bias=torch.ones(5), centred=True, scale=torch.ones(2, 3))


def test_a_wrong_shape_of_an_argument_raises():
    norm = FrozenNorm(gain=ONES, bias=None, centred=True, scale=torch.ones(2, 3))
    with pytest.raises(TypeCheckError, match="update"):
        norm.linear(torch.ones(4))


def test_a_wrong_type_raises():
    with pytest.raises(TypeCheckError):
        Site(kind="attn", layer="nine")
