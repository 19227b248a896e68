"""`streamlens lesion`: how much worse a model predicts text when layers are missing or stand in another order.

1. Every prompt is a text; all of them together give one loss, in nats per token.
2. Without `--drop`, `--random` or `--shuffle` every layer (or sublayer) is left out, one after another.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from streamlens.cli.options import ModelChoice, Output, html_option, model_options, output_options, require_page
from streamlens.cli.prompts import prompt_options, read_prompts


@click.command("lesion")
@prompt_options
@click.option(
    "--over",
    type=click.Choice(["layers", "sublayers"]),
    default="layers",
    show_default=True,
    help="What is left out, one by one or at random.",
)
@click.option("--drop", metavar="LABEL", multiple=True, help="Leave these out at once: L3, L4.mlp. Repeatable.")
@click.option("--random", "drawn", type=click.IntRange(min=1), metavar="K", help="Leave K out at once, at random.")
@click.option("--shuffle", type=click.IntRange(min=0), metavar="N", help="Swap two random layers, N times.")
@click.option("--repeats", type=click.IntRange(min=1), default=1, show_default=True, help="Random sets or orders.")
@click.option("--seed", type=int, default=0, show_default=True, help="For what is random.")
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Texts at once.")
@html_option
@model_options()
@output_options
def command(
    prompt: tuple[str, ...],
    column: str | None,
    over: str,
    drop: tuple[str, ...],
    drawn: int | None,
    shuffle: int | None,
    repeats: int,
    seed: int,
    batch_size: int,
    html: Path | None,
    choice: ModelChoice,
    out: Output,
) -> int:
    """How much worse the model predicts text without some of its layers, or with them in another order.

    PROMPT is a text, a .txt, .jsonl, .csv or .parquet file, or - for lines on standard input. The loss is
    the cross entropy of the next token, in nats per token, over all texts.

    \b
    streamlens lesion texts.txt
    streamlens lesion texts.txt --over sublayers
    streamlens lesion texts.txt --random 4 --repeats 10
    streamlens lesion texts.txt --shuffle 2 --repeats 10
    """
    _require_one(drop=drop, random=drawn, shuffle=shuffle)
    require_page(html)
    texts = [given.text for given in read_prompts(prompt, column=column)]

    from streamlens.cli.each import counted, load_model
    from streamlens.cli.output import Result, emit, note

    model = load_model(choice, quiet=out.quiet)
    from streamlens.experiments.lesion import lesion

    with counted("forwards", quiet=out.quiet) as progress:
        found = lesion(
            model,
            texts,
            over=over,
            drop=drawn if drawn is not None else [_member(label) for label in drop] or None,
            shuffle=shuffle,
            repeats=repeats,
            seed=seed,
            batch_size=batch_size,
            prepend_bos=choice.prepend_bos,
            progress=progress,
        )
    rows = found.to_frame()
    asked = {"drop": list(drop), "random": drawn, "shuffle": shuffle, "repeats": repeats}
    data = _payload(found, rows, asked)
    if html is not None:
        _write_page(html, data, rows)
    emit([Result(payload=data, frame=lambda: rows, show=lambda console: _show(console, data))], out)
    if html is not None:
        note(f"wrote {html}", quiet=out.quiet)
    return 0


def _require_one(**ways: Any) -> None:
    given = [f"--{name}" for name, value in ways.items() if value not in (None, ())]
    if len(given) > 1:
        raise click.UsageError(f"A lesion is of one kind; got {' and '.join(given)}.", click.get_current_context())


def _member(label: str) -> int | str:
    """`3` is a layer, as `L3` is."""
    return int(label) if re.fullmatch(r"\d+", label) else label


def _payload(found: Any, rows: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(found.provenance)
    own = {name: made.pop(name) for name in ("texts", "over", "seed")}
    return {
        **own,
        "tokens": found.tokens,
        **asked,
        "model": made,
        "loss": found.losses[0],
        "lesions": rows.iloc[1:].drop(columns="tokens").to_dict("records"),
    }


def _show(console: Any, data: Mapping[str, Any]) -> None:
    """A row a lesion, the model as it is first."""
    from streamlens.cli import tables, terminal

    terminal.show_lines(
        console,
        [
            f"Loss on {data['texts']} texts, {data['tokens']:,} predicted tokens, in nats per token; "
            "changes, lesioned − as it is",
            "",
        ],
    )
    rows = data["lesions"]
    shuffled = any(row["kendall_tau"] for row in rows)
    extra = [("inverted pairs", "right")] if shuffled else []
    bars = tables.bar_column(console)
    made = terminal.table("without" if not shuffled else "order", *extra, ("loss", "right"), ("change", "right"), *bars)
    made.add_row("the model as it is", *[""] * len(extra), f"{data['loss']:.3f}")
    largest = max(abs(row["delta"]) for row in rows)
    for row in rows:
        share = [f"{row['kendall_tau']:.1%}"] if shuffled else []
        drawn = tables.bars(console, row["delta"], largest)
        change = terminal.signed(row["delta"])
        made.add_row(terminal.text(str(row["lesion"])), *share, f"{row['loss']:.3f}", change, *drawn)
    console.print(made, "")
    terminal.show_lines(console, [terminal.made_by(data["model"])], style="dim")


def _write_page(path: Path, data: Mapping[str, Any], rows: Any) -> None:
    from streamlens import plots
    from streamlens.cli import page
    from streamlens.report import Section

    caption = (
        "The loss under each lesion, from the loss of the model as it is: the cross entropy of the next token, in nats "
        "per token, over all texts (Veit et al. 2016)."
    )
    kinds = ("drop", "random", "shuffle")
    asked = {name: data[name] for name in ("texts", "tokens", "over", *kinds, "repeats", "seed")}
    page.put(
        path,
        [Section(heading="Loss under lesions", figure=plots.lesion(rows), caption=caption)],
        title=f"Loss under lesions, {data['texts']} texts",
        made=data["model"],
        asked={name: value for name, value in asked.items() if value not in (None, [])},
        table=rows,
        closure=[f"The loss of the model as it is: {data['loss']:.3f} nats per token."],
    )
