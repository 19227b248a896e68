"""`streamlens steps`: the model with every write scaled, as if it took longer or shorter steps along its depth."""

import re
from typing import Any

import click

from streamlens.cli.decompose import position_of
from streamlens.cli.options import ModelChoice, Output, model_options, output_options
from streamlens.cli.prompts import Prompt, prompt_options, read_prompts


@click.command("steps")
@prompt_options
@click.option("--h", "factors", type=float, multiple=True, metavar="H", help="What writes are times. Repeatable.")
@click.option("--layers", metavar="A-B", help="Only of these layers: 5, or 10-19. [default: all]")
@click.option(
    "--calls", type=click.IntRange(min=1), multiple=True, default=(1,), help="Smaller steps: 2 halves. Repeatable."
)
@click.option("--token", metavar="TEXT|INDEX", default="-1", help="Compare what comes next here. [default: the last]")
@model_options()
@output_options
def command(
    prompt: tuple[str, ...],
    column: str | None,
    factors: tuple[float, ...],
    layers: str | None,
    calls: tuple[int, ...],
    token: str,
    choice: ModelChoice,
    out: Output,
) -> int:
    """Loss and divergence when every write is scaled by H: 1 is the model, 0 leaves its embedding.

    PROMPT is a text, a .txt, .jsonl, .csv or .parquet file, or - for lines on standard input.

    \b
    streamlens steps "After crossing the river, she rested on the bank" --h 0 --h 0.5 --h 1
    streamlens steps "After crossing the river, she rested on the bank" --h 1 --calls 2 --layers 10-19
    """
    chosen = _layers(layers)
    prompts = read_prompts(prompt, column=column)

    from streamlens.cli.each import answer, load_model
    from streamlens.cli.output import Result

    model = load_model(choice, quiet=out.quiet)
    from streamlens.experiments.scale_steps import STEPS, scale_steps

    position: Any = position_of(token)

    def work(number: int, given: Prompt) -> Any:
        found = scale_steps(
            model,
            given.text,
            list(factors or STEPS),
            layers=chosen,
            calls=list(calls),
            position=position,
            prepend_bos=choice.prepend_bos,
        )
        rows: Any = found.to_frame()
        data = {
            "prompt": given.text,
            "position": found.position,
            "token": found.token,
            "model": {name: value for name, value in found.provenance.items() if name not in ("prompts", "layers")},
            "layers": list(found.layers),
            "tokens": found.tokens,
            "loss": found.base_loss,
            "top": found.base_top,
            "runs": rows[["h", "calls", "kl", "loss", "delta", "top"]].to_dict("records"),
        }
        return Result(
            payload=data, frame=lambda: rows.assign(prompt_id=number), show=lambda console: _show(console, data)
        )

    return answer(prompts, work, out)


def _layers(text: str | None) -> Any:
    """`5`, or `10-19`, the last one included."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if not found:
        raise click.UsageError(
            f"--layers is a number or a range such as 10-19; got {text!r}.", click.get_current_context()
        )
    first = int(found[1])
    return list(range(first, int(found[2] or first) + 1))


def _show(console: Any, data: dict[str, Any]) -> None:
    from streamlens.cli import terminal
    from streamlens.display import display_token

    terminal.show_prompt(console, data["prompt"])
    where = f"{display_token(data['token'], width=24)} (position {data['position']})"
    layers = f"layers {data['layers'][0]} to {data['layers'][-1]}"
    said = f"Every write of {layers} times h; as it is {data['loss']:.3f} nats per token, next at {where}: "
    terminal.show_lines(console, [said + display_token(data["top"]), ""])
    made = terminal.table(("h", "right"), ("calls", "right"), ("KL", "right"), ("loss", "right"), "next")
    for run in data["runs"]:
        made.add_row(
            f"{run['h']:g}", str(run["calls"]), f"{run['kl']:.4f}", f"{run['loss']:.3f}", terminal.token(run["top"])
        )
    console.print(made, "")
    terminal.show_lines(console, ["KL: from the model's own next token, in nats. loss: nats per token of the prompt."])
    terminal.show_lines(console, [terminal.made_by(data["model"])], style="dim")
