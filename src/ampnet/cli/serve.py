"""``ampnet serve MODEL``: predictions of a saved model, or of a checkpoint of a training run, over HTTP.

    ampnet serve lists.safetensors                         a model that --save wrote
    ampnet serve runs/first                                the last good checkpoint of a folder of --checkpoint-dir
    ampnet serve lists.safetensors --host 0.0.0.0          other machines, too: requests need a token

The server is `ampnet.serve`, its interface the page that it shows. Ctrl-C or SIGTERM: no new connections; requests in
progress are answered.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampnet.cli.options import Parser, port, positive, processes, whole

if TYPE_CHECKING:
    from ampnet.experiments.settings import Training
    from ampnet.experiments.workload import Facts, Workload
    from ampnet.lang import Compiled


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "serve",
        parents=[common],
        help="serve the predictions of a saved model over HTTP",
        description="Serve the predictions of a model that 'ampnet train ... --save FILE' wrote, or of the last "
        "checkpoint of a run. Needs the extra serve.",
    )
    text = "saved model, folder of checkpoints (--checkpoint-dir), or one checkpoint in it"
    parser.add_argument("model", type=_there, metavar="MODEL", help=text)
    parser.add_argument(
        "--port", type=port, default=8000, metavar="PORT", help="port to listen on; 0: any that is free (default: 8000)"
    )
    add_options(parser)
    workers = "number of processes that predict; 1: this one (default: 1)"
    parser.add_argument("--workers", type=processes, default=1, metavar="N", help=workers)
    parser.set_defaults(run=run, parser=parser)


def add_options(parser: Any) -> None:
    """Add the options of who may ask, and how much."""
    host = "address to listen on; one that other machines can reach needs a token (default: 127.0.0.1)"
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help=host)
    token = (
        "file with the token that requests must carry; if there is none, a token is made and written to it (default: "
        "$AMPNET_TOKEN; with an address that other machines can reach, a new file)"
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=token)
    body = "maximal size of a request's body in MB (default: 8)"
    parser.add_argument("--max-body", type=positive, default=8.0, metavar="MB", help=body)
    rate = "maximal number of requests a second of each client; 0: no limit (default: 100)"
    parser.add_argument("--rate", type=whole(0), default=100, metavar="N", help=rate)


def _there(text: str) -> Path:
    path = Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"there is no file or folder {path}")
    return path


@dataclass(frozen=True)
class _Source:
    """A trained model."""

    workload: Workload[Any]
    settings: Training
    facts: Facts
    graph: Compiled
    epoch: int | None
    checkpoint: Path | None = None


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    import torch

    from ampnet.cli.interrupt import Stopping
    from ampnet.runtime.inline import Inline
    from ampnet.runtime.processes import Processes
    from ampnet.runtime.runtime import Runtime
    from ampnet.serve.server import import_uvicorn

    import_uvicorn()
    from ampnet.serve.desk import Desk
    from ampnet.serve.serving import Alone, Serving
    from ampnet.serve.workloads import described

    torch.set_num_threads(1)
    source, desk = _source(args.model), Desk()
    places = desk.most * args.workers
    runtime: Runtime
    if args.workers == 1:
        runtime = Inline(source.graph, max_active_keys=places)
    else:
        runtime = Processes(source.graph, workers=args.workers, max_active_keys=places)
    about = described(source.workload, source.settings, source.facts)
    with Stopping() as stopping, runtime:
        weights = {"epoch": source.epoch, "updates": None}
        try:
            made = Serving(desk, Alone(runtime, weights), port=args.port, host=args.host, **limits(args), **about)
        except OSError as error:
            args.parser.error(f"--host, --port: {args.host}:{args.port}: {error.strerror}; give others")
        with made as serving:
            if source.checkpoint is not None:
                print(f"checkpoint: {source.checkpoint}, {source.workload.name}", flush=True)
            tell(serving)
            serving.run(lambda: stopping.asked)
    return 0


def limits(args: argparse.Namespace) -> dict[str, Any]:
    """Returns arguments of `Serving` from the options of `add_options`."""
    return {
        "token_file": args.token_file,
        "max_body": int(args.max_body * 1e6),
        "rate": float(args.rate) or None,
    }


def tell(serving: Any) -> None:
    """Print the address, and where the token is: never the token itself."""
    print(f"predictions: {serving.address}", flush=True)
    if serving.token_file is not None:
        print(f"requests need the token in {serving.token_file}", flush=True)


def _source(path: Path) -> _Source:
    from ampnet.experiments.saved import read

    if path.is_dir():
        return _of_checkpoint(path)
    saved = read(path)
    return _Source(saved.workload, saved.settings, saved.facts, saved.graph(), saved.reached.get("epoch"))


def _of_checkpoint(path: Path) -> _Source:
    """Returns the model of a checkpoint, or of the last good one in a folder of them."""
    from ampnet.checkpoint.folder import Checkpoints
    from ampnet.checkpoint.manifest import NAME
    from ampnet.errors import CheckpointError
    from ampnet.experiments.catalog import WORKLOADS
    from ampnet.experiments.checked import checked

    one = (path / NAME).exists()
    found = Checkpoints(path.parent).read(path) if one else Checkpoints(path).latest()
    if found is None:
        raise CheckpointError(f"{path}: there is no checkpoint in this folder")
    about = found.data.get("about")
    if not isinstance(about, Mapping) or about.get("workload") not in WORKLOADS:
        raise CheckpointError(
            f"{found.path}: not of 'ampnet train'. To serve a model of your own, load these weights into it (docs/"
            f"checkpoints.md, 'Use its weights') and call ampnet.serve(runtime)"
        )
    workload = WORKLOADS[about["workload"]]
    try:
        settings = checked(workload.settings, about["training"])
        data_dir = None if about.get("data_dir") is None else Path(str(about["data_dir"]))
        settings, _ = workload.resolve(settings, data_dir)
        facts = about.get("facts")
        if facts is None:
            facts = workload.facts(settings, workload.load(settings, data_dir))
        graph = workload.build(settings, facts)
        weights = {name[len("weight/") :]: t for name, t in found.tensors.items() if name.startswith("weight/")}
        graph.model.load_state_dict(weights)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{found.path}: no {workload.name} model can be made of it: {error}") from error
    records = found.data.get("fit", {}).get("records", ())
    epoch = len(records) if isinstance(records, list) else None
    return _Source(workload, settings, facts, graph, epoch, found.path)
