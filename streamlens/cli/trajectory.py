"""`streamlens trajectory`: how far every write moves the stream at one token, and which way."""

from typing import Any

import click

from streamlens.cli.decompose import position_of
from streamlens.cli.options import ModelChoice, Output, model_options, output_options
from streamlens.cli.prompts import Prompt, prompt_options, read_prompts

_KEPT = ["component", "norm", "step", "cosine_stream", "cosine_earlier", "turn", "rank_embedding", "rank_unembedding"]


@click.command("trajectory")
@prompt_options
@click.option("--token", metavar="TEXT|INDEX", default="-1", help="Follow the stream here. [default: the last]")
@model_options()
@output_options
def command(prompt: tuple[str, ...], column: str | None, token: str, choice: ModelChoice, out: Output) -> int:
    """How far every write moves the stream at one token, which way, and whether the token can still be told.

    PROMPT is a text, a .txt, .jsonl, .csv or .parquet file, or - for lines on standard input.

    \b
    streamlens trajectory "After crossing the river, she rested on the bank" --token bank
    """
    prompts = read_prompts(prompt, column=column)

    from streamlens.cli.each import answer, load_model

    model = load_model(choice, quiet=out.quiet)

    def work(number: int, given: Prompt) -> Any:
        return _result(model, given.text, token=token, bos=choice.prepend_bos, number=number)

    return answer(prompts, work, out)


def _result(model: Any, prompt: str, *, token: str, bos: bool, number: int) -> Any:
    from streamlens.cli.output import Result
    from streamlens.hooks.writes.capture import decompose
    from streamlens.readouts.depth.trajectory import trajectory

    ledger = decompose(model, prompt, positions=position_of(token), prepend_bos=bos, keep_logits=False)
    rows: Any = trajectory(ledger, model).to_frame()
    first = rows.iloc[0]
    data = {
        "prompt": prompt,
        "position": int(first["position"]),
        "token": first["token"],
        "sink": bool(first["sink"]),
        "model": dict(ledger.provenance),
        "plane_share": float(first["plane_share"]),
        "steps": rows[_KEPT].astype(object).where(rows[_KEPT].notna(), None).to_dict("records"),
        "closure": {
            "in_order": ledger.in_order,
            "relative": float(ledger.closure.max()),
            "variance": float(rows["var_closure"].max()),
        },
    }
    return Result(
        payload=data,
        frame=lambda: rows.assign(prompt_id=rows["prompt_id"] + number),
        show=lambda console: _show(console, data),
    )


def _show(console: Any, data: dict[str, Any]) -> None:
    from streamlens.cli import terminal
    from streamlens.display import display_token

    terminal.show_prompt(console, data["prompt"])
    where = f"{display_token(data['token'], width=24)} (position {data['position']})"
    terminal.show_lines(console, [f"The path of the stream at {where}", ""])
    names = ("stream", "step", "cos with stream", "turn", "nearer tokens", "likelier tokens")
    made = terminal.table("write", *((name, "right") for name in names))
    for row in data["steps"]:
        made.add_row(
            terminal.text(row["component"]),
            f"{row['norm']:.1f}",
            _number(row["step"], "{:.3f}"),
            _number(row["cosine_stream"], "{:+.3f}"),
            _number(row["turn"], "{:.0f}°"),
            _number(row["rank_embedding"], "{:,}"),
            _number(row["rank_unembedding"], "{:,}"),
        )
    console.print(made, "")
    terminal.show_lines(
        console,
        [
            "step: length of the write over that of the stream before it. cos: above 0 reinforces, below cancels. "
            "turn: from the write before. nearer, likelier: tokens before the token's own, by embedding and by logit.",
            f"Var(x + f) = Var x + Var f + 2 Cov within {terminal.small(data['closure']['variance'])} of it.",
        ],
    )
    terminal.show_closure(console, data["closure"])
    terminal.show_lines(console, [terminal.made_by(data["model"])], style="dim")


def _number(value: Any, form: str) -> str:
    """A number in its form; empty where there is none."""
    return "" if value is None else form.format(value)
