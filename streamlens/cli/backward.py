"""`streamlens backward`: the gradient of a logit or a loss, branch by branch.

1. What is differentiated is read at one token: a logit, a difference, or the loss of the token that follows.
2. The table has the branches that hand back most, in the order in which the gradient meets them; the direct route and
   the branches sum to the gradient at the embedding.
"""

from collections.abc import Mapping
from typing import Any

import click

from streamlens.cli.options import Command, ModelChoice, Output, model_options, output_options
from streamlens.cli.prompts import Prompt, prompt_options, read_prompts


def metric_options(command: Command) -> Command:
    """`--token`, `--for`, `--against`, `--loss`: the number that is differentiated, and where."""
    options = [
        click.option("--token", metavar="TEXT|INDEX", help="Where it is read. [default: the last; all for a loss]"),
        click.option("--for", "wanted", metavar="TOKEN", help="The next token whose logit is read, with its space."),
        click.option("--against", metavar="TOKEN", help="Subtract this token's logit."),
        click.option("--loss", is_flag=True, help="The loss of the token that follows, instead of a logit."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def require_metric(wanted: str | None, against: str | None, *, loss: bool) -> None:
    """One of `--for` and `--loss`, before a model is loaded."""
    from streamlens.cli.decompose import require_for

    require_for(wanted, against)
    if loss == (wanted is not None):
        said = "both" if loss else "neither"
        raise click.UsageError(f"A gradient is of --for TOKEN or of --loss; got {said}.", click.get_current_context())


def metric_of(model: Any, token: str | None, wanted: str | None, against: str | None) -> dict[str, Any]:
    """The arguments of `backward` and `paths`."""
    from streamlens.cli.decompose import position_of, reader_of

    if wanted is None:
        return {"reader": "loss", "position": None if token is None else position_of(token)}
    return {"reader": reader_of(model, wanted, against), "position": position_of("-1" if token is None else token)}


@click.command("backward")
@prompt_options
@metric_options
@click.option("--top", type=click.IntRange(min=1), default=12, show_default=True, help="Branches shown.")
@model_options()
@output_options
def command(
    prompt: tuple[str, ...],
    column: str | None,
    token: str | None,
    wanted: str | None,
    against: str | None,
    loss: bool,
    top: int,
    choice: ModelChoice,
    out: Output,
) -> int:
    """The gradient of a logit or a loss on its way back: the direct route, and what each branch hands back.

    PROMPT is a text, a .txt, .jsonl, .csv or .parquet file, or - for lines on standard input.

    \b
    streamlens backward "After crossing the river, she rested on the bank" \\
        --token bank --for " river" --against " money"
    """
    require_metric(wanted, against, loss=loss)
    prompts = read_prompts(prompt, column=column)

    from streamlens.cli.each import answer, load_model
    from streamlens.cli.output import Result

    model = load_model(choice, quiet=out.quiet)
    from streamlens.cli.swept import numbered
    from streamlens.experiments.backward import backward

    asked = metric_of(model, token, wanted, against)

    def work(number: int, given: Prompt) -> Any:
        found = backward(model, given.text, prepend_bos=choice.prepend_bos, **asked)
        data = _payload(found)
        return Result(
            payload=data,
            frame=lambda: numbered(found.to_frame(), number),
            show=lambda console: _show(console, data, top),
        )

    return answer(prompts, work, out)


def _payload(found: Any) -> dict[str, Any]:
    """Norms over all positions, by branch, and how well they sum."""
    sizes = {part: found.norms(part)[:, 0].tolist() for part in ("gradient", "direct", "contributions")}
    shares = found.shares[:, 0].sum(-1).tolist()
    effects = found.effects[:, 0].sum(-1).tolist()
    rows = [
        {
            "component": label,
            "reads_after": None if row not in found.reads else found.labels[found.reads[row]],
            "gradient": sizes["gradient"][row],
            "direct": sizes["direct"][row],
            "contribution": sizes["contributions"][row],
            "share": shares[row],
            "effect": effects[row],
        }
        for row, label in enumerate(found.labels)
    ]
    return {
        "prompt": found.ledger.prompts[0],
        **head(found.ledger, found.metric, found.unit, found.places[0]),
        "value": float(found.value[0]),
        "direct_share": float(found.direct_share[0].sum()),
        "writes": rows,
        "closure": {
            "in_order": found.ledger.in_order,
            "relative": float(found.ledger.closure.max()),
            "gradient": float(found.closure.max()),
        },
        "model": dict(found.ledger.provenance),
    }


def head(ledger: Any, metric: str, unit: str, places: tuple[int, ...]) -> dict[str, Any]:
    """What is differentiated, and where it is read."""
    texts = [ledger.context[0][place] for place in places]
    return {"metric": {"name": metric, "unit": unit}, "positions": list(places), "tokens": texts}


def heading(data: Mapping[str, Any]) -> str:
    """`logit(·river) at ·bank (position 9) is +3.742 logits`."""
    from streamlens.cli import terminal
    from streamlens.display import display_token

    metric, places = data["metric"], data["positions"]
    where = f"{len(places)} tokens"
    if len(places) == 1:
        where = f"{display_token(data['tokens'][0], width=24)} (position {places[0]})"
    return f"{metric['name']} at {where} is {terminal.signed(data['value'])} {metric['unit']}"


def _show(console: Any, data: Mapping[str, Any], top: int) -> None:
    from streamlens.cli import terminal

    terminal.show_prompt(console, data["prompt"])
    terminal.show_lines(console, [f"{heading(data)}; norms of its gradient over all positions, from the end back", ""])
    made = terminal.table(
        "branch", ("gradient at it", "right"), ("hands back", "right"), ("share", "right"), ("first order", "right")
    )
    branches = [row for row in data["writes"] if row["reads_after"] is not None]
    largest = sorted(branches, key=lambda row: -row["contribution"])[:top]
    for row in reversed([row for row in branches if row in largest]):
        sizes = [f"{row['gradient']:.4g}", f"{row['contribution']:.4g}"]
        made.add_row(
            terminal.text(row["component"]), *sizes, terminal.signed(row["share"]), terminal.signed(row["effect"])
        )
    first = data["writes"][0]
    made.add_section()
    made.add_row("direct route", "", f"{first['direct']:.4g}", terminal.signed(data["direct_share"]), "")
    made.add_row(
        terminal.text(first["component"]), f"{first['gradient']:.4g}", "", "", terminal.signed(first["effect"])
    )
    console.print(made, "")
    rest = len(branches) - len(largest)
    lines = [f"The {len(largest)} of {len(branches)} branches that hand back most."] if rest else []
    closes = terminal.small(data["closure"]["gradient"])
    lines.append(f"Direct route and branches sum to autograd's gradient at every depth within {closes} of it.")
    terminal.show_lines(console, lines)
    terminal.show_closure(console, data["closure"])
    terminal.show_lines(console, [terminal.made_by(data["model"])], style="dim")
