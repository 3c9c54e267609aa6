"""The manifest for Kubernetes: valid YAML, with commands and options that exist."""

from __future__ import annotations

import shlex

import pytest

from ampnet.cli import make_parser
from tests.pages import ROOT

yaml = pytest.importorskip("yaml")


def test_the_manifest_is_a_ray_job_whose_command_exists() -> None:
    job = yaml.safe_load((ROOT / "docs" / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    program, *words = shlex.split(job["spec"]["entrypoint"])
    assert program == "ampnet"
    args = make_parser().parse_args([word for word in words if not word.startswith("/") and word != "--data-dir"][:-3])
    cluster = job["spec"]["rayClusterSpec"]
    processors = int(cluster["headGroupSpec"]["rayStartParams"]["num-cpus"])
    for group in cluster["workerGroupSpecs"]:
        processors += group["replicas"] * int(group["rayStartParams"]["num-cpus"])
        assert group["template"]["spec"]["containers"]
    assert args.workers == processors
