"""`streamlens jacobian`: how much a change of the stream at one token grows on its way through the layers."""

from typing import Any

import click

from streamlens.cli.decompose import position_of
from streamlens.cli.options import ModelChoice, Output, model_options, output_options
from streamlens.cli.prompts import Prompt, prompt_options, read_prompts

_KEPT = ["component", "largest", "smallest", "branch", "reached", "bound", "rms"]


@click.command("jacobian")
@prompt_options
@click.option("--token", metavar="TEXT|INDEX", default="-1", help="Of the stream here. [default: the last]")
@click.option("--start", metavar="LABEL", help="Changed right after this write. [default: the embedding]")
@click.option("--end", metavar="LABEL", help="Read right after this write. [default: the last]")
@click.option("--others", type=click.Choice(["held", "free"]), default="held", show_default=True, help="Other tokens.")
@click.option("--method", type=click.Choice(["dense", "lanczos"]), help="[default: dense up to a width of 1024]")
@model_options()
@output_options
def command(
    prompt: tuple[str, ...],
    column: str | None,
    token: str,
    start: str | None,
    end: str | None,
    others: str,
    method: str | None,
    choice: ModelChoice,
    out: Output,
) -> int:
    """Singular values of the Jacobian of the stream at one token, sublayer by sublayer and all at once.

    PROMPT is a text, a .txt, .jsonl, .csv or .parquet file, or - for lines on standard input.

    \b
    streamlens jacobian "After crossing the river, she rested on the bank" --token bank
    """
    prompts = read_prompts(prompt, column=column)

    from streamlens.cli.each import answer, load_model
    from streamlens.cli.output import Result

    model = load_model(choice, quiet=out.quiet)
    from streamlens.experiments.jacobian import jacobian

    position: Any = position_of(token)

    def work(number: int, given: Prompt) -> Any:
        found = jacobian(
            model,
            given.text,
            start,
            end,
            position,
            others=others,
            method=method,
            prepend_bos=choice.prepend_bos,
        )
        rows: Any = found.to_frame()
        data = {
            "prompt": given.text,
            "position": found.position,
            "token": found.token,
            "model": {name: value for name, value in found.provenance.items() if name not in ("prompts", "alone")},
            "start": found.start,
            "end": found.end,
            "others": found.others,
            "method": found.method,
            "singular_values": found.values.tolist(),
            "bound": found.bound,
            "steps": rows[_KEPT].to_dict("records"),
            "closure": {"product": found.closure},
        }
        return Result(
            payload=data,
            frame=lambda: rows.assign(prompt_id=number),
            show=lambda console: _show(console, data),
        )

    return answer(prompts, work, out)


def _show(console: Any, data: dict[str, Any]) -> None:
    from streamlens.cli import terminal
    from streamlens.display import display_token

    terminal.show_prompt(console, data["prompt"])
    where = f"{display_token(data['token'], width=24)} (position {data['position']})"
    said = f"d x[{data['end']}] / d x[{data['start']}] of the stream at {where}, the other positions {data['others']}"
    terminal.show_lines(console, [said, ""])
    names = ("largest", "branch", "reached", "bound", "random direction")
    made = terminal.table("sublayer", *((name, "right") for name in names))
    for row in data["steps"]:
        sizes = [row[name] for name in ("largest", "branch", "reached", "bound", "rms")]
        made.add_row(terminal.text(row["component"]), *("" if size != size else f"{size:.3g}" for size in sizes))
    console.print(made, "")
    values = data["singular_values"]
    terminal.show_lines(
        console,
        [
            "largest: singular value of the sublayer's own Jacobian, I + J of its branch. reached: of the product so "
            "far; bound: what it cannot exceed, the product of the largest.",
            f"The largest singular values of the whole: {', '.join(f'{value:.4g}' for value in values[:5])}.",
            f"The product over the sublayers is the whole within {terminal.small(data['closure']['product'])} of it.",
        ],
    )
    terminal.show_lines(console, [terminal.made_by(data["model"])], style="dim")
