"""The command line: `streamlens decompose`, `ablate`, `sweep` and the other commands that `COMMANDS` lists.

1. `COMMANDS` lists them with their help; a command's module is imported when it is run or asked for its own
   help. No module of this folder imports more than click when it is loaded, so `--help` costs no torch.
2. Data goes to standard output, everything else to standard error.
3. Exit codes: 0 done; 1 ran, but a check failed or some prompts failed; 2 the call, the input or the model
   is at fault; 130 interrupted. An error is one line, and a hint; a traceback comes only with `--debug`.
"""

import difflib
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

import click

from streamlens import __version__
from streamlens.cli.options import debug_option
from streamlens.errors import StreamlensError

#: command -> (its module, one line of help)
COMMANDS = {
    "decompose": (
        "streamlens.cli.decompose",
        "What each part of the model wrote, and what it says for a token.",
    ),
    "read": ("streamlens.cli.read", "What each part gives a reader: a probe, a direction, a head's row."),
    "visibility": ("streamlens.cli.visibility", "What a reader can see of each write, and who reads whom."),
    "lens": ("streamlens.cli.lens", "The likely next tokens after every sublayer (logit lens)."),
    "sources": ("streamlens.cli.sources", "From which words each attention head wrote into a token."),
    "ablate": ("streamlens.cli.ablate", "Switch parts off: what changes, split into parts that sum."),
    "sweep": ("streamlens.cli.sweep", "Switch every sublayer or head off, one after another."),
    "backward": ("streamlens.cli.backward", "The gradient on its way back: what each branch does to it."),
    "paths": ("streamlens.cli.paths", "The gradient by how many branches it goes through."),
    "compare": ("streamlens.cli.compare", "What separates a word in one context from it in another."),
    "lesion": ("streamlens.cli.lesion", "The loss on texts without some layers, or in another order."),
    "trajectory": ("streamlens.cli.trajectory", "How far each write moves a token's stream, and which way."),
    "jacobian": ("streamlens.cli.jacobian", "How much a change of the stream grows through the layers."),
    "steps": ("streamlens.cli.scaled", "The model with every write scaled, or layers in smaller steps."),
    "report": ("streamlens.cli.report", "One page about one token, every ablation switchable, to send on."),
    "plot": ("streamlens.cli.plot", "One figure of a saved frame, as a page, PNG, SVG or PDF."),
    "run": ("streamlens.cli.run", "Many prompts into Parquet files; goes on where it was stopped."),
    "probe": ("streamlens.cli.probe", "Fit a word's sense as a direction, and read sentences with it."),
    "explore": ("streamlens.cli.explore", "A page on this machine on which every part is a switch."),
    "lab": ("streamlens.cli.lab", "Small residual networks solved by hand, every claim checked."),
    "check": ("streamlens.cli.check", "Prove that a model's books close: wiring, sums, logits."),
    "models": ("streamlens.cli.models", "The models that have a name, and fetching them."),
    "doctor": ("streamlens.cli.doctor", "What is installed here, what is missing, and how to mend it."),
}
FAILED, AT_FAULT, INTERRUPTED = 1, 2, 130


class Commands(click.Group):
    """A group that imports a command when it is needed, and ends every run with one of the exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return import_module(COMMANDS[cmd_name][0]).command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            guess = f" Did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{guess}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "streamlens",
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs one command line. With `standalone_mode=False` errors are raised instead of printed."""
        state = extra.setdefault("obj", {"debug": False, "interrupted": False})
        options = {"windows_expand_args": windows_expand_args, **extra}
        for stream in (sys.stdout, sys.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:  # no text may end a run because a terminal cannot show it
                reconfigure(errors="backslashreplace")
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **options)
        with _interruptible(state):
            try:
                ended = super().main(args, prog_name, complete_var, standalone_mode=False, **options)
            except Exception as error:
                if state["debug"]:
                    traceback.print_exc()
                _fail(click.Abort() if state["interrupted"] else error, debug=state["debug"])
        sys.exit(ended if isinstance(ended, int) else 0)


@contextmanager
def _interruptible(state: dict[str, bool]) -> Iterator[None]:
    """Notes a Ctrl-C beside raising it: an import that is interrupted may turn it into an ImportError."""

    def interrupt(_number: int, _frame: Any) -> None:
        state["interrupted"] = True
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # somebody else's business
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _fail(error: Exception, *, debug: bool) -> NoReturn:
    """Says what went wrong, in one line and a hint, and ends the process."""
    from streamlens.display import visible

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        sys.exit(AT_FAULT)
    if isinstance(error, click.Abort):  # click's name for Ctrl-C
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    message, hint = _said(error, debug=debug)
    click.echo(f"error: {visible(message)}", err=True)
    if hint:
        click.echo(f"hint: {visible(hint)}", err=True)
    sys.exit(AT_FAULT)


def _said(error: Exception, *, debug: bool) -> tuple[str, str | None]:
    if isinstance(error, StreamlensError):
        return error.message, error.hint
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "streamlens"
        return error.format_message(), f"`{path} --help` says what it takes."
    if isinstance(error, click.ClickException):
        return error.format_message(), None
    text = " ".join(str(error).split())
    hint = None if debug else "The same command with --debug shows where it happened; please report it."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__, hint


@click.group(
    "streamlens",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="streamlens COMMAND --help says what a command takes.",
)
@click.version_option(__version__, prog_name="streamlens", message="%(prog)s %(version)s")
@debug_option
def main() -> None:
    """Keeps books on a transformer's residual stream.

    Every part of a model adds a vector to the stream. streamlens shows these vectors, what they say for a
    token, and that they add up.
    """
