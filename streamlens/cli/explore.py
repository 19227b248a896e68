"""`streamlens explore`: a page on this machine on which every sublayer is a switch."""

from pathlib import Path

import click

from streamlens.cli.decompose import require_for
from streamlens.cli.options import ModelChoice, debug_option, model_options


@click.command("explore")
@click.option("--prompt", metavar="TEXT", help="The sentence to start with.")
@click.option("--for", "wanted", metavar="TOKEN", help="The next token whose logit is read, with its space.")
@click.option("--against", metavar="TOKEN", help="Subtract this token's logit.")
@click.option(
    "--reader",
    "readers",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A saved reader to offer; may be given again.",
)
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=200, show_default=True, help="Longer prompts are refused."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8050, show_default=True, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address it listens on.")
@click.option("--allow-remote", is_flag=True, help="Let --host be reached from other machines; a token is asked for.")
@model_options()
@debug_option
def command(
    prompt: str | None,
    wanted: str | None,
    against: str | None,
    readers: tuple[Path, ...],
    max_tokens: int,
    port: int,
    host: str,
    allow_remote: bool,
    choice: ModelChoice,
) -> int:
    """A page to play with: switch sublayers and heads off and see what the others make of it. Ctrl-C ends it.

    Needs Dash: pip install "streamlens[app]".

    \b
    streamlens explore --prompt "After crossing the river, she rested on the bank" \\
        --for " river" --against " money"
    """
    require_for(wanted, against)
    from streamlens.explorer import require_dash

    require_dash()
    from streamlens.explorer.server import address, make_server, require_allowed, serve, take_port

    token = require_allowed(host, allow_remote=allow_remote)
    with take_port(host, port) as taken:
        from streamlens.cli.each import load_model
        from streamlens.explorer.app import make_app
        from streamlens.explorer.engine import Engine
        from streamlens.explorer.start import starting_state

        model = load_model(choice, quiet=False)
        engine = Engine(
            model, name=choice.model, readers=readers, max_tokens=max_tokens, prepend_bos=choice.prepend_bos
        )
        start = starting_state(model, prompt=prompt, wanted=wanted, against=against)
        app = make_app(engine, start, host=host, port=taken.getsockname()[1], token=token)
        server = make_server(app, taken)
        click.echo(address(taken, token=token))
        click.echo("Open this address in a browser. Ctrl-C ends the explorer.", err=True)
        serve(server)
    return 0
