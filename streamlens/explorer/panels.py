"""What the page shows beside its figures: the token strip, the tables, the numbers of one write. Dash components."""

from collections.abc import Mapping, Sequence
from typing import Any

from dash import html

from streamlens.display import display_token
from streamlens.explorer.attributes import wild
from streamlens.explorer.engine import Answer, Guess
from streamlens.plots.selection import signed

#: part of an effect -> what it is, in words
PARTS = {
    "direct": "the edited writes' own change: what subtracting them predicts",
    "indirect": "how all other writes responded",
    "rescale": "the final norm's scale moving",
    "carry": "the norms along the stream moving",
    "softcap": "what a softcap makes of it",
    "total": "their sum",
    "observed": "the model's own change, measured",
}
_ALWAYS = ("direct", "indirect", "rescale", "total", "observed")
_WRITE = {
    "clean_norm": "norm, clean",
    "ablated_norm": "norm, edited",
    "delta_norm": "norm of its change",
    "cosine": "cosine of clean and edited",
    "norm": "norm",
    "share": "share of the stream",
    "stream_norm": "norm of the stream after it",
}


def strip(tokens: Sequence[Mapping[str, Any]], place: int | None, act: str) -> list[Any]:
    """A button a token; the picked one is pressed."""
    return [
        html.Button(
            [
                html.Span(display_token(token["text"], special=token["special"], width=24), className="text"),
                html.Sub(str(i)),
            ],
            type="button",
            className="token",
            title=display_token(token["text"], special=token["special"]),
            disable_n_clicks=True,
            **wild(data_act=act, data_position=str(i), aria_pressed=str(i == place).lower()),
        )
        for i, token in enumerate(tokens)
    ]


def effects_table(answer: Answer) -> Any:
    """The split of the reader's change, and how well it sums to the model's own."""
    frame = answer.effects
    if frame is None or frame.empty:
        return None
    row: Any = frame.iloc[-1]
    if not answer.reader:
        return html.P(f"KL(clean, edited) of the next token: {float(row['kl']):.4f} nats.")
    unit = str(row["unit"])
    shown = [name for name in PARTS if name in _ALWAYS or float(row[name]) != 0]
    body = [
        html.Tr(
            [
                html.Th(name if name != "observed" else "model", scope="row"),
                _number(float(row[name]), f"effect-{name}"),
                html.Td(PARTS[name], className="says"),
            ],
            className=name,
        )
        for name in shown
    ]
    closure = float(row["closure"])
    said = (
        "The model's own change is not known." if closure != closure else f"The parts sum to it within {closure:.1e}."
    )
    clean = f"Clean value {signed(float(row['clean']))} {unit}."
    foot = f"{said} {clean} KL(clean, edited) of the next token {float(row['kl']):.4f} nats."
    caption = html.Caption(f"{display_token(answer.reader)}, ablated − clean, in {unit}")
    return html.Table([caption, html.Tbody(body), html.Tfoot(html.Tr(html.Td(foot, colSpan=3)))], className="effects")


def guesses_table(guesses: Sequence[Guess], *, edited: bool) -> Any:
    """The likeliest next tokens, with their probabilities before and after."""
    if not guesses:
        return html.P("This model has no linear head, so it predicts no next token.")
    heads = ("next token", "before", "after") if edited else ("next token", "probability")
    return html.Table(
        [
            html.Thead(html.Tr([html.Th(head, scope="col") for head in heads])),
            html.Tbody([_guess(guess, edited=edited) for guess in guesses]),
        ],
        className="guesses",
    )


def _guess(guess: Guess, *, edited: bool) -> Any:
    name = html.Th(
        display_token(guess.token, special=guess.special, width=24),
        scope="row",
        title=display_token(guess.token, special=guess.special),
    )
    cells = [(guess.before, "before"), (guess.after, "after")] if edited else [(guess.before, "before")]
    return html.Tr([name, *(_share(share, side) for share, side in cells)])


def _share(share: float, side: str) -> Any:
    bar = html.Span(className=f"bar {side}", style={"width": f"{100 * share:.2f}%"}, **wild(aria_hidden="true"))
    return html.Td([html.Span(f"{share:.2%}", className="share"), html.Span(bar, className="track")])


def pinned(answer: Answer, label: str) -> Any:
    """All numbers of one write at the picked token."""
    rows = answer.writes.loc[answer.writes["component"].astype(str) == label]
    if rows.empty:
        return html.P("Click a bar, or name a write here, to see its numbers.", className="quiet")
    row: Any = rows.iloc[-1]
    entries = [(said, float(row[name]), name == "share") for name, said in _WRITE.items() if name in rows]
    for name in rows:
        side, _, reader = str(name).partition(": ")
        if side in ("clean", "delta") and reader == answer.reader:
            entries.append(
                (f"gives the reader, {'clean' if side == 'clean' else 'ablated − clean'}", float(row[name]), True)
            )
    status = str(row["status"]) if "status" in rows else "as it is"
    body = [html.Tr([html.Th(said, scope="row"), _number(value, "", sign=sign)]) for said, value, sign in entries]
    caption = f"{label} at {display_token(answer.token)} (position {answer.place}): {status}"
    return html.Table([html.Caption(caption), html.Tbody(body)], className="pinned")


def _number(value: float, name: str, *, sign: bool = True) -> Any:
    """A number as people read it; whole on hover."""
    given: dict[str, Any] = {"id": name} if name else {}
    return html.Td(signed(value) if sign else f"{value:,.3f}", className="number", title=repr(value), **given)
