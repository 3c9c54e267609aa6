"""``ampnet completion bash|zsh``: a script that completes commands, workloads, options and their values with TAB.

    bash   TAB ──> _ampnet ──> ampnet completion bash -- train sent ──> sentiment
                                                                         (nothing: bash completes names of files)

The script calls the program itself, so it fits every version that is installed later, and all options of a workload; a
call takes a tenth of a second, because the parsers are built without torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from ampnet.cli.options import Parser

BASH = """\
_ampnet() {
    local words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" completion bash -- "${words[@]}" 2>/dev/null)
}
complete -o bashdefault -o default -F _ampnet ampnet"""
ZSH = """\
#compdef ampnet
_ampnet() {
    local -a found
    found=("${(@f)$("${words[1]}" completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _ampnet ampnet"""
SCRIPTS = {"bash": BASH, "zsh": ZSH}


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "completion",
        parents=[common],
        help="print a script for completion with TAB, for bash or zsh",
        description="Print a script that completes commands, workloads, options and their values with TAB. bash: put "
        "'source <(ampnet completion bash)' into ~/.bashrc. zsh: put 'source <(ampnet completion zsh)' into ~/.zshrc, "
        "after compinit.",
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS), metavar="SHELL", help="bash or zsh")
    parser.add_argument("words", nargs="*", metavar="WORD", help=argparse.SUPPRESS)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Print the script; or, if a script calls it with words, the completions of the last word."""
    if not args.words:
        print(SCRIPTS[args.shell])
        return 0
    from ampnet.cli import make_parser

    for word in completions(make_parser(), args.words):
        print(word)
    return 0


def completions(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Returns the completions of the last word, after the words before it. Empty for a file, a number or free text."""
    *before, last = words or [""]
    waiting: argparse.Action | None = None  # an option whose value comes next
    positionals = _positionals(parser)
    for word in before:
        if waiting is not None and word == "=":  # bash splits "--sync=gr" into three words
            continue
        if waiting is not None and not _is_left_out(waiting, word):
            waiting = None
        elif word.startswith("-"):
            action = parser._option_string_actions.get(word)
            waiting = action if action is not None and action.nargs != 0 else None
        elif positionals and isinstance(positionals[0], argparse._SubParsersAction):
            if word not in positionals[0].choices:
                return []
            parser = positionals[0].choices[word]
            positionals = _positionals(parser)
        elif positionals and positionals[0].nargs not in ("*", "+"):
            positionals = positionals[1:]
    if waiting is not None and last == "=":
        last = ""
    option, sign, value = last.partition("=")
    if waiting is not None and not _is_left_out(waiting, last):
        return _starting(last, waiting.choices or ())
    if sign and option in parser._option_string_actions:
        choices = parser._option_string_actions[option].choices or ()
        return [f"{option}={choice}" for choice in _starting(value, choices)]
    if last.startswith("-"):
        return _starting(last, (o for o in parser._option_string_actions if o.startswith("--")))
    return _starting(last, (positionals[0].choices or ()) if positionals else ())


def _is_left_out(option: argparse.Action, word: str) -> bool:
    """Whether an option with an optional value has none, because the next word is an option."""
    return option.nargs == "?" and word.startswith("-")


def _positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]


def _starting(start: str, words: Iterable[Any]) -> list[str]:
    return [str(word) for word in words if str(word).startswith(start)]
