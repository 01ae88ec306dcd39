"""`completion`: a script with which bash and zsh complete what is typed after `tidegate`.

All words are in the script, which is made from the commands themselves: to start Python at each Tab takes a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

_SCRIPT = """\
# Completes tidegate in bash and zsh; written by `tidegate completion`.
if [ -n "$ZSH_VERSION" ]; then
    type compdef > /dev/null || {{ autoload -U compinit && compinit; }}
    autoload -U bashcompinit && bashcompinit
fi
_tidegate() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} last=${{COMP_WORDS[COMP_CWORD-1]}} command= words=
    [ "$COMP_CWORD" -lt 2 ] || command=${{COMP_WORDS[1]}}
    case $command in
        {groups}) [ "$COMP_CWORD" -lt 3 ] || command="$command ${{COMP_WORDS[2]}}" ;;
    esac
    COMPREPLY=()
    case "$command $last" in
        {choices}
        {flags}) ;;
        *" -"*) return ;;  # a value that may be anything
    esac
    case "$command $word" in
        {files}) [ -n "$words" ] || return ;;  # files: the shell knows them
    esac
    [ -n "$words" ] || case $command in
        {words}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o bashdefault -o default -F _tidegate tidegate
"""
_ALTERNATIVES = re.compile(r"((?:[\w-]+\|)+[\w-]+)")
_FILES = re.compile(r"FILE|DIR|LOGS|OUT")
"""In the name of an argument that is a file or a folder."""


class Shell(StrEnum):
    """The shells that the script is for."""

    BASH = "bash"
    ZSH = "zsh"


def completion(
    context: typer.Context, shell: Annotated[Shell, typer.Argument(help="Which shell; both read the same script.")]
) -> None:
    """Print the script that completes commands and options at Tab.

    It completes commands, options, and the values that an option may have. Write it again after an update of Tidegate.

    Example:  tidegate completion bash > ~/.local/share/bash-completion/completions/tidegate
              echo 'source <(tidegate completion zsh)' >> ~/.zshrc
    """
    del shell
    typer.echo(script(context.find_root().command), nl=False)


def script(group: Any) -> str:
    """Return the script for the commands of a group."""
    commands = dict(_commands(group))
    parameters = [(name, each, typer.Context(command)) for name, command in commands.items() for each in command.params]
    options = [(name, each, context) for name, each, context in parameters if each.param_type_name == "option"]
    valued = [(name, each, _choices(each, context)) for name, each, context in options if not each.is_flag]
    return _SCRIPT.format(
        groups="|".join(name for name, command in commands.items() if name and _parts(command)),
        choices="\n        ".join(
            f'{_cases(name, each)}) words="{" ".join(choices)}" ;;' for name, each, choices in valued if choices
        ),
        flags="|".join(_cases(name, each) for name, each, _ in options if each.is_flag),
        files="|".join(
            f'"{name} "|"{name} "[!-]*'
            for name, each, _ in parameters
            if each.param_type_name == "argument" and _FILES.search(each.metavar or "")
        ),
        words="\n        ".join(
            f'"{name}") words="{" ".join(_words(command))}" ;;' for name, command in commands.items()
        ),
    )


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield a command and all below it, with the words that lead to each."""
    yield " ".join(words), command
    for name, each in _parts(command).items():
        yield from _commands(each, (*words, name))


def _parts(command: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(command, "commands", {})
    return found


def _words(command: Any) -> Iterable[str]:
    """Yield what may follow a command: commands of a group, values of an argument, and options."""
    yield from _parts(command)
    for each in command.params:
        if each.param_type_name == "argument":
            yield from _choices(each, typer.Context(command))
        else:
            yield from (name for name in (*each.opts, *each.secondary_opts) if name.startswith("--"))
    yield "--help"


def _cases(name: str, option: Any) -> str:
    return "|".join(f'"{name} {each}"' for each in (*option.opts, *option.secondary_opts))


def _choices(parameter: Any, context: typer.Context) -> list[str]:
    """Return the values that a parameter may have, as its help shows them; none if they are not listed."""
    shown = parameter.get_help_record(context)
    found = None if shown is None or parameter.metavar else _ALTERNATIVES.search(shown[0])
    return found[1].split("|") if found else []
