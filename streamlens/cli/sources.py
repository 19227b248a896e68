"""`streamlens sources`: from which words the attention heads wrote into a token.

1. The prompt is taken apart at one token: every head's write as a sum over the tokens it read from.
2. With `--for` each of these rows is read as a logit or a difference; without it, by its share of the stream.
3. Two tables: per source token, summed over all heads; and the largest single (head, source token) rows.
"""

from typing import Any

import click

from streamlens.cli.options import ModelChoice, Output, model_options, output_options
from streamlens.cli.prompts import Prompt, prompt_options, read_prompts


@click.command("sources")
@prompt_options
@click.option("--token", metavar="TEXT|INDEX", default="-1", help="The token written into. [default: the last]")
@click.option("--for", "wanted", metavar="TOKEN", help="The next token whose logit is read, with its space.")
@click.option("--against", metavar="TOKEN", help="Subtract this token's logit.")
@click.option("--top", type=click.IntRange(min=1), default=12, show_default=True, help="Rows of the second table.")
@click.option("--site", "sites", metavar="LABEL", multiple=True, help="Only this attention write, e.g. L9.attn.")
@model_options()
@output_options
def command(
    prompt: tuple[str, ...],
    column: str | None,
    token: str,
    wanted: str | None,
    against: str | None,
    top: int,
    sites: tuple[str, ...],
    choice: ModelChoice,
    out: Output,
) -> int:
    """From which words each attention head wrote into a token: head by source token, and summed over heads.

    PROMPT is a text, a .txt, .jsonl, .csv or .parquet file, or - for lines on standard input.

    \b
    streamlens sources "After crossing the river, she rested on the bank" \\
        --token bank --for " river" --against " money"
    """
    if against is not None and wanted is None:
        raise click.UsageError("--against is the other side of --for, which is missing.", click.get_current_context())
    prompts = read_prompts(prompt, column=column)

    from streamlens.cli.each import answer, load_model

    model = load_model(choice, quiet=out.quiet)
    from streamlens.cli.books import Split, entry
    from streamlens.cli.decompose import position_of, reader_of
    from streamlens.cli.output import Result

    reader = reader_of(model, wanted, against)

    def work(number: int, given: Prompt) -> Any:
        found = entry(
            model,
            given.text,
            token=position_of(token),
            reader=reader,
            bos=choice.prepend_bos,
            whole=False,
            split=Split("source", sites or None, top),
        )
        data = _payload(found)
        return Result(
            payload=data,
            frame=lambda: _frame(found, number),
            show=lambda console: _show(console, found, data, top),
        )

    return answer(prompts, work, out)


def _payload(found: Any) -> dict[str, Any]:
    """Every (head, source token) row, what they come to per source token, and how well the books close."""
    from streamlens.cli.books import payload

    whole = payload(found)
    key = "share" if found.readout is None else "contribution"
    sizes = {part["component"]: part[key] for part in whole["parts"]}
    rows = []
    for number, site in enumerate(found.ledger.sites):
        if site.source is not None:
            rows.append(
                {
                    "component": site.label,
                    "layer": site.layer,
                    "head": site.head,
                    "source": site.source,
                    "source_token": found.ledger.source_text(site, 0),
                    "attention": float(found.ledger.attention[number, 0, 0]),
                    key: sizes[site.label],
                }
            )
    by_source: dict[int, dict[str, Any]] = {}
    for row in rows:
        token = {"source": row["source"], "source_token": row["source_token"], key: 0.0}
        by_source.setdefault(row["source"], token)[key] += row[key]
    head = {name: whole[name] for name in ("prompt", "tokens", "position", "token", "token_id", "model")}
    reader = {"reader": whole["reader"], "value": whole["value"], "sum": whole["sum"]} if found.readout else {}
    return head | reader | {"sources": list(by_source.values()), "rows": rows, "closure": whole["closure"]}


def _frame(found: Any, number: int) -> Any:
    from streamlens.cli.books import frame

    rows = frame(found, number)
    return rows[rows["source"].notna()].reset_index(drop=True)


def _show(console: Any, found: Any, data: dict[str, Any], top: int) -> None:
    from streamlens.cli import tables, terminal
    from streamlens.display import display_token

    key = "share" if found.readout is None else "contribution"
    unit = "share" if found.readout is None else found.readout.reader.unit
    terminal.show_prompt(console, found.prompt)
    where = f"{display_token(data['token'], width=24)} (position {data['position']})"
    says = found.says or "share of the stream"
    terminal.show_lines(console, [f"{says} at {where}: what attention brought from each token, over all heads", ""])
    made = terminal.table(("", "right"), "from", (unit, "right"), *tables.bar_column(console))
    largest = max(abs(row[key]) for row in data["sources"])
    for row in data["sources"]:
        bars = tables.bars(console, row[key], largest)
        made.add_row(str(row["source"]), terminal.token(row["source_token"]), terminal.signed(row[key]), *bars)
    made.add_section()
    made.add_row("", "all source tokens", terminal.signed(sum(row[key] for row in data["sources"])))
    console.print(made, "")
    made = terminal.table("head", "from", ("attention", "right"), (unit, "right"), *tables.bar_column(console))
    rows = sorted(data["rows"], key=lambda row: -abs(row[key]))
    for row in rows[:top]:
        head = row["component"].partition("<")[0]
        size = terminal.signed(row[key])
        bars = tables.bars(console, row[key], abs(rows[0][key]))
        made.add_row(terminal.text(head), terminal.token(row["source_token"]), f"{row['attention']:.2f}", size, *bars)
    if rest := rows[top:]:
        made.add_row(f"other ({len(rest)})", "", "", terminal.signed(sum(row[key] for row in rest)))
    console.print(made, "")
    terminal.show_lines(console, tables.sum_lines(found, data["closure"]))
    parts = terminal.small(data["closure"]["parts"])
    terminal.show_lines(console, [f"Heads and source tokens sum to their attention writes within {parts} of them."])
    terminal.show_closure(console, data["closure"])
    terminal.show_lines(console, [terminal.made_by(found.ledger.provenance)], style="dim")
