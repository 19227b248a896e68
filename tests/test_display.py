"""Token text is legible, and inert in HTML, in plotly and in a terminal that reads rich markup."""

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from streamlens.display import (
    cells,
    display_token,
    html_token,
    markup_escape,
    plotly_token,
    terminal_token,
    visible,
)
from streamlens.errors import InputError


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (" bank", "·bank"),
        ("bank  ", "bank··"),
        ("a b", "a b"),
        ("a  b", "a··b"),
        (" ", "·"),
        ("\n", "⏎"),
        ("\r\n", "⟨U+000D⟩⏎"),
        ("\tx", "⇥x"),
        ("", "∅"),
        ("\x1b[31mred", "⟨U+001B⟩[31mred"),
        ("\x9b31m", "⟨U+009B⟩31m"),
        ("\u202eevil", "⟨U+202E⟩evil"),
        ("a\u200db", "a⟨U+200D⟩b"),
        ("\ufeff", "⟨U+FEFF⟩"),
        ("\u00ad", "⟨U+00AD⟩"),
        ("\u00a0x", "⟨U+00A0⟩x"),
        ("\ufe0f", "⟨U+FE0F⟩"),
        ("\u3164", "⟨U+3164⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("\ue000", "⟨U+E000⟩"),
        ("\u2028", "⟨U+2028⟩"),
        ("\U000e0001", "⟨U+E0001⟩"),
        ("⟨F0⟩⟨9F⟩", "⟨F0⟩⟨9F⟩"),
        ("\u0301", "◌\u0301"),
        ("·", "⟨U+00B7⟩"),
        ("⏎", "⟨U+23CE⟩"),
        ("∅", "⟨U+2205⟩"),
        ("…", "…"),
        ("<script>", "<script>"),
        ("河", "河"),
        ("😀", "😀"),
    ],
)
def test_a_token_is_shown_as(token, shown):
    assert display_token(token) == shown


def test_a_special_token_is_dashed():
    assert display_token("<s>", special=True) == "╌<s>╌"
    assert display_token("", special=True) == "╌∅╌"


def test_a_long_token_is_cut_between_pieces():
    assert display_token("abcdefgh", width=8) == "abcdefgh"
    assert display_token("abcdefgh", width=5) == "abcd…"
    assert display_token("a\u202eb", width=5) == "a…"  # never inside a code
    assert display_token("⟨F0⟩⟨9F⟩", width=6) == "⟨F0⟩…"
    assert display_token("河河河", width=5) == "河河…"
    assert display_token("<|endoftext|>", special=True, width=8) == "╌<|end…╌"


@pytest.mark.parametrize(("width", "special"), [(0, False), (2, True), (-1, False)])
def test_a_width_too_small_is_refused(width, special):
    with pytest.raises(InputError, match=rf"a width of at least {3 if special else 1}; got width={width}"):
        display_token("x", special=special, width=width)


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=12)


@given(ANY_TEXT, st.booleans(), st.integers(3, 12))
def test_whatever_comes_in_what_is_shown_is_one_visible_line(token, special, width):
    for shown in (display_token(token, special=special), display_token(token, special=special, width=width)):
        assert shown
        assert shown == shown.strip()
        assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for char in shown)
        shown.encode()
    assert cells(display_token(token, special=special, width=width)) <= width


@given(ANY_TEXT)
def test_visible_text_keeps_its_words_and_loses_its_controls(text):
    visible(text).encode()
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs") for char in visible(text))
    assert visible(visible(text)) == visible(text)
    assert visible(display_token(text)) == display_token(text)  # a shown token may stand in a sentence


def test_plain_sentences_are_left_alone():
    assert visible("After crossing the river, she") == "After crossing the river, she"
    assert visible("two\nlines") == "two⏎lines"


def test_html_is_escaped():
    assert html_token("<script>") == "&lt;script&gt;"
    assert html_token("&amp;") == "&amp;amp;"
    assert html_token(" </s>", special=True) == "╌·&lt;/s&gt;╌"


def test_plotly_finds_no_template_and_no_formula():
    assert plotly_token("%{x}") == "%&#123;x}"
    assert plotly_token("$x$") == "&#36;x&#36;"
    assert plotly_token("<b>") == "&lt;b&gt;"


def test_right_to_left_letters_do_not_move_their_neighbours():
    assert plotly_token("שלום") == "\u2068שלום\u2069"


def printed(text: str) -> str:
    """What rich makes of it, styles shown as escapes."""
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=200, emoji=False, highlight=False).print(text, end="")
    return out.getvalue()


@pytest.mark.parametrize(
    "token",
    ["[bold]", "[/]", "[/bold]", "[red]x[/red]", "\\[bold]", "\\\\[b]", "[1]", "a\\", "[link=http://x]y"],
)
def test_rich_prints_markup_and_does_not_obey_it(token):
    assert printed(terminal_token(token)) == token
    assert printed(f"{terminal_token(token)}[b]x[/b]") == f"{token}\x1b[1mx\x1b[0m"


def test_terminal_escapes_do_not_pass():
    assert "\x1b" not in terminal_token("\x1b[2J\x1b]0;title\x07")


def test_tokens_that_make_a_tag_together_are_escaped_together():
    pieces = [display_token(piece) for piece in ("[", "bold", "]")]
    assert printed(markup_escape("".join(pieces)) + "x") == "[bold]x"


@given(ANY_TEXT)
def test_rich_prints_any_token_as_it_is_shown(token):
    assert printed(terminal_token(token)).replace("\n", "") == display_token(token)
