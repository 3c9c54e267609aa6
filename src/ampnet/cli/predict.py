"""``ampnet predict FILE INPUT...``: predictions of a saved model, for input in the natural form of its workload.

    ampnet predict digits.safetensors seven.png                  mnist: image files
    ampnet predict lists.safetensors range 3 7 1                 list-reduction: an operation and digits
    ampnet predict trees.safetensors '(It (is great))'           sentiment: a sentence with its tree
    ampnet predict facts.safetensors < story.txt                 babi15: facts and questions in English
    ampnet predict dipoles.safetensors water.mol CCO             qm9: mol files; SMILES if RDKit is installed

Without an input, it is read from stdin. If an input cannot be read, the error names it and nothing is predicted.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ampnet.cli.options import Parser, file_to_read, file_to_write
from ampnet.errors import DataError
from ampnet.experiments.described import DESCRIBED

INVERT = {"auto": None, "yes": True, "no": False}


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command to the parser of all commands."""
    takes = "; ".join(f"{w.name}: {w.input}" for w in DESCRIBED.values() if w.input)
    parser = commands.add_parser(
        "predict",
        parents=[common],
        help="compute the predictions of a saved model for new input",
        description="Print the predictions of a model that 'ampnet train ... --save FILE' wrote, one per input.",
        epilog=f"Input, by workload: {takes}.",
    )
    parser.add_argument("file", type=file_to_read, metavar="FILE", help="saved model")
    given = "input in the form of the workload, see below (default: read from stdin)"
    parser.add_argument("inputs", nargs="*", metavar="INPUT", help=given)
    invert = (
        "whether to invert images (mnist only). The model was trained on light digits on a dark background; auto: "
        "invert images with a light border (default: auto)"
    )
    parser.add_argument("--invert", choices=tuple(INVERT), default="auto", help=invert)
    parser.add_argument(
        "--json", type=file_to_write, metavar="FILE", help="also write the predictions to FILE (default: none)"
    )
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Print the predictions, in the order of the inputs."""
    import torch

    from ampnet.cli.report import write_json
    from ampnet.experiments.running import make_judge
    from ampnet.experiments.saved import read
    from ampnet.experiments.workload import Asking

    torch.set_num_threads(1)
    saved = read(args.file)
    workload = saved.workload
    if args.invert != "auto" and workload.name != "mnist":
        args.parser.error(f"--invert: {workload.name} takes no images")
    inputs = args.inputs or workload.parted(_stdin(workload.input))
    questions = workload.ask(inputs, saved.settings, saved.facts, Asking(INVERT[args.invert]))
    if not questions:
        raise DataError(f"there is nothing to ask; {workload.name} takes {workload.input}")
    graph = saved.graph()
    with make_judge(graph, saved.settings) as runtime:
        predictions = runtime.predict([question.arguments for question in questions])
    answers = [question.answer(prediction) for question, prediction in zip(questions, predictions, strict=True)]
    for answer in answers:
        print(answer.text)
    if args.json is not None:
        write_json(args.json, {"workload": workload.name, "answers": [dict(answer.data) for answer in answers]})
    return 0


def _stdin(wanted: str) -> str:
    if sys.stdin.isatty():
        print(f"reading {wanted}; end with Ctrl-D", file=sys.stderr)
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise DataError(f"stdin: not text in UTF-8 (byte {error.object[error.start]:#x})") from error
