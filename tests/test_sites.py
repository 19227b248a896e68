"""Sites: the labels people type, both spellings, and what is said when there is no such write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlens.errors import InputError
from streamlens.sites import KINDS, ROWS, Site, find

LABELS = {
    "embed": Site(kind="embed"),
    "pos_embed": Site(kind="pos_embed"),
    "L0.attn": Site(kind="attn", layer=0),
    "L9.mlp": Site(kind="mlp", layer=9),
    "L9.cross_attn": Site(kind="cross_attn", layer=9),
    "L9.mixer": Site(kind="mixer", layer=9),
    "L3.mlp_2": Site(kind="mlp", layer=3, index=1),
    "L9.attn.bias": Site(kind="attn", layer=9, part="bias"),
    "L1.mlp.norm.bias": Site(kind="mlp", layer=1, part="norm.bias"),
    "L9H2": Site(kind="attn", layer=9, head=2),
    "L12H0<4": Site(kind="attn", layer=12, head=0, source=4),
    "L9N104": Site(kind="mlp", layer=9, neuron=104),
    **{row: Site(kind=row) for row in ROWS},
}

TRANSFORMER_LENS = {
    "9_attn_out": "L9.attn",
    "12_mlp_out": "L12.mlp",
    "blocks.9.hook_attn_out": "L9.attn",
    "blocks.0.hook_mlp_out": "L0.mlp",
    "hook_embed": "embed",
    "hook_pos_embed": "pos_embed",
}


@pytest.mark.parametrize("label", LABELS)
def test_a_label_is_its_site_and_back(label):
    assert Site.parse(label) == LABELS[label]
    assert LABELS[label].label == str(LABELS[label]) == label


@pytest.mark.parametrize("text", TRANSFORMER_LENS)
def test_transformer_lens_spellings_are_read(text):
    assert Site.parse(text).label == TRANSFORMER_LENS[text]


layers = st.integers(0, 300)
numbers = st.integers(0, 20_000)
wholes = st.builds(
    Site,
    kind=st.sampled_from(KINDS),
    layer=st.none() | layers,
    index=st.integers(0, 12),
    part=st.sampled_from(["", "bias", "norm.bias"]),
)
heads = st.builds(Site, kind=st.just("attn"), layer=layers, head=numbers, source=st.none() | numbers)
neurons = st.builds(Site, kind=st.just("mlp"), layer=layers, neuron=numbers)


@given(wholes | heads | neurons)
def test_every_site_survives_its_label(site):
    assert Site.parse(site.label) == site
    assert Site.parse(f"  {site.label}\n") == site


@given(st.tuples(wholes | heads | neurons, wholes | heads | neurons))
def test_two_sites_share_no_label(pair):
    one, other = pair
    assert (one == other) == (one.label == other.label)


@given(heads | neurons)
def test_a_part_belongs_to_a_whole_write(site):
    assert site.sublayer.label == f"L{site.layer}.{site.kind}"


@pytest.mark.parametrize(
    "text", ["", " ", "L9", "L9.", "9", "L9.attention", "L-1.attn", "LxH2", "L9H", "attn_out", "L3.mlp_0"]
)
def test_what_is_no_label_is_refused(text):
    with pytest.raises(InputError) as refused:
        Site.parse(text)
    assert str(refused.value) == (
        f"A site is written like embed, L9.attn, L9.mlp, L9H2 or L9.attn.bias; got {text.strip()!r}."
    )


SITES = [Site(kind="embed"), *(Site(kind=kind, layer=i) for i in range(3) for kind in ("attn", "mlp"))]


@pytest.mark.parametrize("text", ["L1.attn", " L1.attn ", "1_attn_out", "blocks.1.hook_attn_out", SITES[3]])
def test_find_takes_text_in_both_spellings_or_a_site(text):
    assert find(text, SITES) is SITES[3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("L1.mixer", "No write is called 'L1.mixer' here. Nearest: L1.mlp, L2.mlp, L0.mlp."),
        ("7_attn_out", "No write is called 'L7.attn' here. Nearest: L2.attn, L1.attn, L0.attn."),
        ("L1.atn", "No write is called 'L1.atn' here. Nearest: L1.attn, L2.attn, L0.attn."),
        ("L1H0", "No write is called 'L1H0' here."),
        (Site(kind="mlp", layer=5), "No write is called 'L5.mlp' here. Nearest: L2.mlp, L1.mlp, L0.mlp."),
        (
            "river",
            "A site is written like embed, L9.attn, L9.mlp, L9H2 or L9.attn.bias; got 'river'.",
        ),
    ],
)
def test_what_is_not_there_is_answered_with_the_nearest(text, message):
    with pytest.raises(InputError) as refused:
        find(text, SITES)
    assert str(refused.value).startswith(message)
