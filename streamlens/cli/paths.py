"""`streamlens paths`: the gradient of a logit or a loss by path length.

1. What is differentiated is chosen as for `backward`.
2. The table has a row per length that matters: how many paths there are, the norm of what they bring together, and its
   signed share of the sum.
"""

from collections.abc import Mapping
from typing import Any

import click

from streamlens.cli.backward import metric_of, metric_options, require_metric
from streamlens.cli.options import ModelChoice, Output, model_options, output_options
from streamlens.cli.prompts import Prompt, prompt_options, read_prompts

FAMILIES = ("all", "attn", "attn only", "mlp", "mlp only")
#: a length is shown if its norm is at least this share of all norms, or it is the direct route
SHOWN = 1e-3


@click.command("paths")
@prompt_options
@metric_options
@click.option("--family", type=click.Choice(FAMILIES), default="all", show_default=True, help="Which paths are shown.")
@click.option("--samples", type=click.IntRange(min=0), default=0, help="Single paths drawn of each length.")
@click.option("--seed", type=int, default=0, show_default=True, help="For the draw.")
@click.option(
    "--precision", type=click.Choice(["float64", "model"]), default="float64", show_default=True, help="They run in."
)
@model_options()
@output_options
def command(
    prompt: tuple[str, ...],
    column: str | None,
    token: str | None,
    wanted: str | None,
    against: str | None,
    loss: bool,
    family: str,
    samples: int,
    seed: int,
    precision: str,
    choice: ModelChoice,
    out: Output,
) -> int:
    """The gradient of a logit or a loss by the number of branches it goes through on its way back.

    PROMPT is a text, a .txt, .jsonl, .csv or .parquet file, or - for lines on standard input.

    \b
    streamlens paths "After crossing the river, she rested on the bank" \\
        --token bank --for " river" --against " money"
    """
    require_metric(wanted, against, loss=loss)
    prompts = read_prompts(prompt, column=column)

    from streamlens.cli.each import answer, load_model
    from streamlens.cli.output import Result

    model = load_model(choice, quiet=out.quiet)
    from streamlens.experiments.paths import paths

    asked = metric_of(model, token, wanted, against)
    how = {"samples": samples, "seed": seed, "precision": precision}

    def work(number: int, given: Prompt) -> Any:
        found = paths(model, given.text, prepend_bos=choice.prepend_bos, **asked, **how)
        data = _payload(found, how)
        return Result(
            payload=data,
            frame=lambda: found.to_frame().assign(prompt_id=number),
            show=lambda console: _show(console, data, family),
        )

    return answer(prompts, work, out)


def _payload(found: Any, how: Mapping[str, Any]) -> dict[str, Any]:
    from streamlens.cli.backward import head

    frame = found.to_frame()
    kept = [name for name in frame.columns if name != "family"]
    return {
        "prompt": found.ledger.prompts[0],
        **head(found.ledger, found.metric, found.unit, found.place),
        "value": found.value,
        **how,
        "families": {
            str(name): rows[kept].dropna(axis="columns").to_dict("records")
            for name, rows in frame.groupby("family", observed=True)
        },
        **{name: frame.attrs[name] for name in ("sums", "effective_length", "effective_range", "drift")},
        "closure": {
            "in_order": found.ledger.in_order,
            "relative": float(found.ledger.closure.max()),
            "gradient": found.closure,
        },
        "model": dict(found.ledger.provenance),
    }


def _show(console: Any, data: Mapping[str, Any], family: str) -> None:
    from streamlens.cli import terminal
    from streamlens.cli.backward import heading

    terminal.show_prompt(console, data["prompt"])
    terminal.show_lines(console, [f"{heading(data)}; its gradient at the embedding by branches gone through", ""])
    rows = data["families"].get(family, [])
    made = terminal.table(
        *((name, "right") for name in ("length", "paths", "norm together", "share of norms", "share"))
    )
    shown = [row for row in rows if row["norm_share"] >= SHOWN or row["length"] == 0]
    for row in shown:
        sizes = [f"{row['paths']:.4g}", f"{row['norm']:.4g}", f"{row['norm_share']:.1%}", terminal.signed(row["share"])]
        made.add_row(str(row["length"]), *sizes)
    made.add_section()
    made.add_row("sum", "", f"{data['sums'].get(family, 0.0):.4g}", "", terminal.signed(sum(r["share"] for r in rows)))
    console.print(made, "")
    low, high = data["effective_range"]
    closes, drift = terminal.small(data["closure"]["gradient"]), terminal.small(data["drift"])
    terminal.show_lines(
        console,
        [
            f"Mean length by gradient, of all paths: {data['effective_length']:.1f}; 95 % of it from {low} to {high}.",
            f"Lengths sum to autograd's gradient within {closes} of it; the model's own is {drift} away.",
        ],
    )
    terminal.show_closure(console, data["closure"])
    terminal.show_lines(console, [terminal.made_by(data["model"])], style="dim")
