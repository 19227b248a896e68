"""`streamlens probe fit` and `streamlens probe score`: a word's sense as a direction, and what it says of sentences.

1. Sentences come from a labelled file, or are the bundled " bank" in two senses; all of it is read and checked before
   a model is loaded.
2. `fit` fits a probe after every write, says how often each is right on held-out sentences beside its controls, and
   writes one of them to a file that `--reader` takes elsewhere.
3. `score` reads such a file and every sentence with it.
"""

from pathlib import Path
from typing import Any

import click

from streamlens.cli.options import (
    FORMATS,
    Command,
    ModelChoice,
    Output,
    debug_option,
    model_options,
    output_options,
    require_place,
)
from streamlens.errors import InputError

BUNDLED = " bank"


@click.group("probe")
@debug_option
def command() -> None:
    """Fit a probe to labelled sentences, and read sentences with one.

    A probe is a direction of the stream at one word that tells two senses (or other labels) apart.
    """


def sentence_options(command: Command) -> Command:
    """The argument SENTENCES, `--token`, `--label`, `--column`: what both commands share."""
    options = [
        click.argument("sentences", type=click.Path(path_type=Path), required=False),
        click.option("--token", metavar="TEXT", help="The word that is read; it stands once in each sentence."),
        click.option("--label", metavar="NAME", help="The column of the labels. [default: label, or sense]"),
        click.option("--column", metavar="NAME", help="The column of the texts. [default: prompt, or text]"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@command.command("fit")
@sentence_options
@click.option("-o", "--output", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write the probe there.")
@click.option("--at", metavar="LABEL|best", default="best", show_default=True, help="The write after which it reads.")
@click.option(
    "--method",
    type=click.Choice(["mean_difference", "logistic"]),
    default="mean_difference",
    show_default=True,
    help="How it is fitted.",
)
@click.option("--shuffles", type=click.IntRange(min=1), default=10, show_default=True, help="Permuted-label controls.")
@click.option("--seed", default=0, show_default=True, help="Of the split and the permutations.")
@model_options()
@click.option("--format", type=click.Choice(FORMATS), help="Default: a table on a terminal, JSON in a pipe.")
@click.option("-q", "--quiet", is_flag=True, help="No progress or notes on standard error.")
@debug_option
def fit_command(
    sentences: Path | None,
    token: str | None,
    label: str | None,
    column: str | None,
    path: Path | None,
    at: str,
    method: str,
    shuffles: int,
    seed: int,
    choice: ModelChoice,
    format: str | None,
    quiet: bool,
) -> None:
    """Fit a probe after every write, test it on held-out sentences, and save one.

    SENTENCES is a .jsonl, .csv or .parquet file with a text and a label in each row; without it, the bundled
    240 sentences with " bank" in two senses. Rows may say in a column `split` whether they are to train or
    to test, and in `template` which frame they were made from; templates are never on both sides.

    \b
    streamlens probe fit -o sense.safetensors
    streamlens probe fit sentences.jsonl --token bank --label sense -o sense.safetensors --at L12.mlp
    """
    given, token = _given(sentences, token, label, column)
    if path is not None:
        require_place(path, "-o")
        if path.suffix.lower() not in (".safetensors", ".npz"):
            raise InputError(f"A probe is written to a .safetensors or .npz file; got {str(path)!r}.")

    from streamlens.cli.each import counted, load_model
    from streamlens.cli.output import Result, emit, note
    from streamlens.cli.probed import fit_payload, show_fit
    from streamlens.experiments.probe import probe

    model = load_model(choice, quiet=quiet)
    if at != "best":
        from streamlens.sites import find

        find(at, model.wiring.sites)
    with counted("sentences", quiet=quiet) as done:
        found = probe(
            model,
            given,
            token=token,
            method=method,
            shuffles=shuffles,
            seed=seed,
            prepend_bos=choice.prepend_bos,
            progress=lambda what, n, total: done(n, total) if what == "sentences" else None,
        )
    reader = found.reader(at)
    if path is not None:
        reader.save(path)
        note(f"wrote {path}", quiet=quiet)
    data = fit_payload(found, reader)
    result = Result(payload=data, frame=found.to_frame, show=lambda console: show_fit(console, data))
    emit([result], Output(format=format, path=None, quiet=quiet))


@command.command("score")
@click.argument("reader", type=click.Path(path_type=Path))
@sentence_options
@model_options()
@output_options
def score_command(
    reader: Path,
    sentences: Path | None,
    token: str | None,
    label: str | None,
    column: str | None,
    choice: ModelChoice,
    out: Output,
) -> None:
    """Read a word in every sentence with a probe, and count how often it is right.

    READER is a file that `streamlens probe fit` wrote. SENTENCES is as there.

    \b
    streamlens probe score sense.safetensors sentences.jsonl --token bank --label sense
    """
    given, token = _given(sentences, token, label, column)

    from streamlens.readouts.readers.probes import classes_of
    from streamlens.readouts.readers.reader import Reader

    loaded = Reader.load(reader)
    classes_of(loaded)

    from streamlens.cli.each import counted, load_model
    from streamlens.cli.output import Result, emit
    from streamlens.cli.probed import score_payload, show_scores
    from streamlens.experiments.score import score

    model = load_model(choice, quiet=out.quiet)
    with counted("sentences", quiet=out.quiet) as done:
        found = score(model, loaded, given, token=token, prepend_bos=choice.prepend_bos, progress=done)
    data = score_payload(found)
    emit([Result(payload=data, frame=found.to_frame, show=lambda console: show_scores(console, data))], out)


def _given(path: Path | None, token: str | None, label: str | None, column: str | None) -> tuple[list[Any], str]:
    """The sentences and the token, checked without a model."""
    from streamlens.sentences import bank_senses, read_sentences

    if path is None:
        if label is not None or column is not None:
            raise click.UsageError(
                "--label and --column name columns of a file, which is missing.", click.get_current_context()
            )
        return bank_senses(), token or BUNDLED
    if token is None:
        raise click.UsageError("A file of sentences needs --token, the word that is read.", click.get_current_context())
    return read_sentences(path, label=label, column=column), token
