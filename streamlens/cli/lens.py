"""`streamlens lens`: the most likely next tokens after every sublayer, at one token.

Each depth goes through the true final norm with that depth's own statistics (logit lens), so its last row is
the model's own prediction; how close it comes is printed. Not to be mixed with `decompose --for`.
"""

from typing import Any

import click

from streamlens.cli.decompose import position_of
from streamlens.cli.options import ModelChoice, Output, model_options, output_options
from streamlens.cli.prompts import Prompt, prompt_options, read_prompts


@click.command("lens")
@prompt_options
@click.option("--token", metavar="TEXT|INDEX", default="-1", help="Read the stream at this token. [default: the last]")
@click.option("--top", type=click.IntRange(min=1), default=5, show_default=True, help="How many tokens.")
@model_options()
@output_options
def command(prompt: tuple[str, ...], column: str | None, token: str, top: int, choice: ModelChoice, out: Output) -> int:
    """The most likely next tokens if the model stopped after each sublayer (logit lens).

    PROMPT is a text, a .txt, .jsonl, .csv or .parquet file, or - for lines on standard input.

    \b
    streamlens lens "The capital of France is" --top 3
    """
    prompts = read_prompts(prompt, column=column)

    from streamlens.cli.each import answer, load_model

    model = load_model(choice, quiet=out.quiet)

    def work(number: int, given: Prompt) -> Any:
        return _result(model, given.text, token=token, top=top, bos=choice.prepend_bos, number=number)

    return answer(prompts, work, out)


def _result(model: Any, prompt: str, *, token: str, top: int, bos: bool, number: int) -> Any:
    from streamlens.cli.books import entry
    from streamlens.cli.output import Result
    from streamlens.readouts.lens import logit_lens

    found = entry(model, prompt, token=position_of(token), reader=None, bos=bos, whole=False, logits=True)
    lens = logit_lens(found.ledger, model, top=top)
    own = found.ledger.logits
    error = None if own is None else float((model.logits_at(found.ledger.stream) - own).abs().max())
    data = _payload(found, lens, error)
    return Result(
        payload=data,
        frame=lambda: _frame(lens, number),
        show=lambda console: _show(console, found, data),
    )


def _payload(found: Any, lens: Any, error: float | None) -> dict[str, Any]:
    steps = []
    for row, site in enumerate(lens.sites):
        ids, logits, shares = (column[row, 0, 0].tolist() for column in (lens.ids, lens.logits, lens.probabilities))
        top = [
            {"token": lens.texts[i], "token_id": i, "logit": logit, "probability": share}
            for i, logit, share in zip(ids, logits, shares, strict=True)
        ]
        steps.append({"after": site.label, "layer": site.layer, "kind": site.part or site.kind, "top": top})
    return {
        "prompt": found.prompt,
        "tokens": list(found.tokens),
        "position": found.position,
        "token": found.tokens[found.position],
        "model": dict(found.ledger.provenance),
        "steps": steps,
        "closure": {
            "in_order": found.ledger.in_order,
            "relative": float(found.ledger.closure.max()),
            "logits": error,
        },
    }


def _frame(lens: Any, number: int) -> Any:
    frame = lens.to_frame()
    return frame.assign(prompt_id=frame["prompt_id"] + number)


def _show(console: Any, found: Any, data: dict[str, Any]) -> None:
    from streamlens.cli import terminal
    from streamlens.display import display_token

    terminal.show_prompt(console, found.prompt)
    where = f"{display_token(data['token'], width=24)} (position {data['position']})"
    terminal.show_lines(console, [f"What the model would say after {where} if it stopped there", ""])
    label = max(len(step["after"]) for step in data["steps"])
    columns, width = _fit(console, label, len(data["steps"][0]["top"]))
    made = terminal.table("after", *(str(rank) for rank in range(1, columns + 1)))
    for step in data["steps"]:
        made.add_row(terminal.text(step["after"]), *(_guess(guess, width) for guess in step["top"][:columns]))
    console.print(made, "")
    if columns < len(data["steps"][0]["top"]):
        terminal.show_lines(console, [f"The best {columns}: more do not fit here. --format json has all."])
    closure = data["closure"]
    if closure["logits"] is not None:
        said = f"The last row is the model's own prediction within {terminal.small(closure['logits'])} logits."
        terminal.show_lines(console, [said])
    terminal.show_closure(console, closure)
    terminal.show_lines(console, [terminal.made_by(data["model"])], style="dim")


def _fit(console: Any, label: int, top: int) -> tuple[int, int]:
    """How many guesses fit side by side, and the cells each token may take."""
    least, most, beside = 6, 18, 8  # a share and the gaps stand beside each token
    room = console.width - label
    columns = max(1, min(top, room // (least + beside)))
    return columns, max(least, min(most, room // columns - beside))


def _guess(guess: dict[str, Any], width: int) -> Any:
    from streamlens.cli import terminal
    from streamlens.display import cells

    name = terminal.token(guess["token"], width=width)
    name.append(" " * (width - cells(name.plain)))
    share = guess["probability"]
    said = f"{share:4.0%}" if share >= 0.005 else " <1%"
    name.append(f" {said}", style="bold" if share >= 0.5 else "dim")
    return name
