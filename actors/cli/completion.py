"""`creche completion`: the completion of its words, for a shell."""

import click
from click.shell_completion import get_completion_class

from actors.cli import words


@click.command(cls=words.Verb)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Write the completion script for a shell.

    \b
    bash:  eval "$(creche completion bash)"     in ~/.bashrc
    zsh:   eval "$(creche completion zsh)"      in ~/.zshrc
    fish:  creche completion fish | source      in ~/.config/fish/config.fish
    """  # noqa: D301 - click wants the character itself
    kind = get_completion_class(shell)
    assert kind is not None  # click knows these three
    script = kind(context.find_root().command, {}, "creche", "_CRECHE_COMPLETE")
    words.tell(script.source().strip())
