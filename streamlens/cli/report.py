"""`streamlens report`: everything about one token of one prompt, as a page to send to a colleague.

1. The prompt is studied (`streamlens.study`), or a study that was saved is loaded: then no model is needed.
2. The page is one file: figures with sentences computed from the data, every single ablation switchable, tables.
"""

from pathlib import Path
from typing import Any

import click

from streamlens.cli.options import ModelChoice, debug_option, model_options, require_place
from streamlens.errors import InputError


@click.command("report")
@click.argument("prompt")
@click.option("-o", "--output", "path", type=click.Path(path_type=Path), required=True, metavar="FILE.html")
@click.option("--token", metavar="TEXT|INDEX", default="-1", help="The token to look at. [default: the last]")
@click.option("--for", "wanted", metavar="TOKEN", help="The next token whose logit is read. [default: the likeliest]")
@click.option("--against", metavar="TOKEN", help="Subtract this token's logit.")
@click.option("--section", "sections", metavar="NAME", multiple=True, help="Only this section. Repeatable.")
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Also save the study, for another page.")
@model_options()
@click.option("-q", "--quiet", is_flag=True, help="No progress or notes on standard error.")
@debug_option
def command(
    prompt: str,
    path: Path,
    token: str,
    wanted: str | None,
    against: str | None,
    sections: tuple[str, ...],
    save: Path | None,
    choice: ModelChoice,
    quiet: bool,
) -> int:
    """One page about one token: what wrote it, what each branch does, and proof that it adds up.

    PROMPT is a text, a file or standard input (-) with one prompt, or a study that --save wrote. The page is one
    file that needs no network. Sections: model, tokens, sum, parts, steps, map, ablations, responses, lens, sources,
    visibility, growth, tables. Exits with 1 if something does not add up.

    \b
    streamlens report "After crossing the river, she rested on the bank" -o bank.html \\
        --token bank --for " river" --against " money"
    """
    from streamlens.cli.decompose import require_for
    from streamlens.cli.output import note
    from streamlens.report import SECTIONS, adds_up, study_page, write_page

    require_for(wanted, against)
    require_place(path, "-o")
    if save is not None:
        require_place(save, "--save")
    if unknown := [name for name in sections if name not in SECTIONS]:
        raise InputError(f"--section is one of {', '.join(SECTIONS)}; got {unknown[0]!r}.")
    study = _saved(prompt)
    if study is None:
        study = _made(prompt, token, wanted, against, choice, quiet)
    if save is not None:
        study.save(save)
        note(f"wrote {save}", quiet=quiet)
    write_page(path, study_page(study, sections=sections))
    note(f"wrote {path}", quiet=quiet)
    return 0 if adds_up(study) else 1


def _saved(prompt: str) -> Any:
    """The study of a file; None where the argument is no study."""
    from streamlens.studies import Study, is_study

    try:
        return Study.load(prompt) if Path(prompt).is_file() and is_study(prompt) else None
    except OSError:  # a long prompt is no file name
        return None


def _made(prompt: str, token: str, wanted: str | None, against: str | None, choice: ModelChoice, quiet: bool) -> Any:
    from streamlens.cli.prompts import read_prompts

    given = read_prompts([prompt])
    if len(given) > 1:
        raise InputError(f"A report is about one prompt; {prompt} holds {len(given)}.")

    from streamlens.cli.decompose import position_of, reader_of
    from streamlens.cli.each import counted, load_model

    model = load_model(choice, quiet=quiet)
    from streamlens.experiments.study import study

    at = position_of(token)
    with counted("branches switched off", quiet=quiet) as progress:
        return study(
            model,
            given[0].text,
            position=-1 if at is None else at,
            reader=reader_of(model, wanted, against),
            prepend_bos=choice.prepend_bos,
            progress=progress,
        )
