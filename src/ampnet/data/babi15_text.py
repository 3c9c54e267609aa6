"""bAbI task 15 as it was published: stories in English, with questions.

    1 Mice are afraid of wolves.
    2 Gertrude is a mouse.
    ...
    9 What is gertrude afraid of?	wolf	2 1          answer and supporting lines, separated by tabs

A new story starts at number 1. A record is one question with the preceding facts of its story; `graph` parses it. Every
answer of the files is checked to follow from the facts.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ampnet.data import babi15
from ampnet.data.babi15 import HAS_FEAR, IS, Deduction, deduced
from ampnet.data.dataset import Dataset, Split
from ampnet.data.entry import Entry, File, Remote, Source
from ampnet.data.files import LARGEST, broken, lines, need, refuse_unsafe
from ampnet.lang.edges import Edges
from ampnet.lang.spaces import Seq

NAME = "qa15_basic-deduction_{part}.txt"
ONE = {"mice": "mouse", "wolves": "wolf", "cats": "cat", "sheep": "sheep"}
"""The singular of a species."""
FEAR = re.compile(r"(\w+) are afraid of (\w+)\.")
KIND = re.compile(r"(\w+) is a (\w+)\.")
ASKED = re.compile(r"What is (\w+) afraid of\?")


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the facts before it."""

    facts: tuple[str, ...]
    question: str
    answer: str
    support: tuple[int, ...]
    """The lines of the story that the answer follows from, from 1."""


def graph(record: Question) -> Deduction:
    """Returns the text as a graph: nodes are numbered in order of occurrence. Raises ValueError for other text."""
    nodes: dict[str, int] = {}
    facts = []
    for text in record.facts:
        a, kind, b = fact(text)
        facts.append((nodes.setdefault(a, len(nodes)), kind, nodes.setdefault(b, len(nodes))))
    match = ASKED.fullmatch(record.question)
    asked = nodes.get(match[1].lower()) if match else None
    if asked is None or record.answer not in nodes:
        raise ValueError(f"{record.question!r}, {record.answer!r}: not about what the story tells")
    table = np.array(facts, dtype=np.int64).reshape(-1, 3)
    if deduced(table, asked) != nodes[record.answer]:
        raise ValueError(f"{record.question!r}: the answer {record.answer!r} does not follow from the story")
    return Deduction(len(nodes), table, asked, nodes[record.answer])


def fact(text: str) -> tuple[str, int, str]:
    """Returns subject, `IS` or `HAS_FEAR`, and object: names in lower case and in the singular."""
    if match := FEAR.fullmatch(text):
        a, b = (ONE.get(word.lower(), word.lower()) for word in match.groups())
        return a, HAS_FEAR, b
    if match := KIND.fullmatch(text):
        return match[1].lower(), IS, match[2]
    raise ValueError(f"{text!r} is neither 'X are afraid of Y.' nor 'X is a Y.'")


def arguments(record: Question) -> tuple[Seq, Edges, Tensor]:
    """Returns the arguments of `Babi15`."""
    return babi15.arguments(graph(record))


def read(folder: Path, size: str) -> Dataset[Question]:
    """Read the files in ``en`` (1,000 training questions) or ``en-10k`` (10,000)."""
    splits = {}
    for part in ("train", "test"):
        questions = list(_questions(need(folder, f"{size}/{NAME.format(part=part)}")))
        splits[part] = Split(f"babi15-{size} {part}", questions.__getitem__, len(questions))
    return Dataset(f"babi15-{size}", splits, arguments)


def _questions(path: Path) -> Iterator[Question]:
    story: list[str] = []
    before = 0
    told: set[int] = set()  # the lines of the story that are facts
    for number, line in enumerate(lines(path), start=1):
        own, _, text = line.partition(" ")
        if not own.isdecimal() or len(own) > 9 or int(own) not in (1, before + 1):
            raise broken(
                path, f"line {number}", f"it begins with {own[:20]!r}; it must be {before + 1}, or 1 for a new story"
            )
        before = int(own)
        if before == 1:
            story, told = [], set()
        try:
            if "\t" not in text:
                fact(text)
                told.add(before)
                story.append(text)
                continue
            question, answer, support = text.split("\t")
            record = Question(tuple(story), question.strip(), answer, tuple(map(int, support.split(" "))))
            if strange := [s for s in record.support if s not in told]:
                raise ValueError(f"line {strange[0]} of the story is no fact")
            graph(record)
        except ValueError as error:
            raise broken(path, f"line {number}", str(error)) from error
        yield record


def convert(fetched: Path, out: Path, data_dir: Path | None) -> None:
    """Extract the texts of task 15 from the archive of all tasks."""
    path = fetched / ARCHIVE
    try:
        with tarfile.open(path) as archive:
            refuse_unsafe(path, archive.getnames())
            for size in ("en", "en-10k"):
                (out / size).mkdir()
                for part in ("train", "test"):
                    name = f"{size}/{NAME.format(part=part)}"
                    member = archive.getmember(f"tasks_1-20_v1-2/{name}")
                    if member.size > LARGEST:
                        raise broken(path, name, f"{member.size:,} bytes are too many for it")
                    text: Any = archive.extractfile(member)
                    (out / name).write_bytes(text.read())
    except (tarfile.TarError, zlib.error, KeyError, EOFError, AttributeError) as error:
        raise broken(path, "", f"not the archive of the bAbI tasks ({error})") from error


ARCHIVE = "tasks_1-20_v1-2.tar.gz"
TEST = "32b77e117fe9acf5f94906684e3b5206de0108e646c76e1da3e022896ec7ee94"
TRAIN = {
    "en": "e856ebfdcce4dd7d617c1d10f985e96a0850c0ca18e9a19a017cb710d135ed3d",
    "en-10k": "0a86673f7fafa484f8ee394048f03de19405bdc40b58f21086969efad2862010",
}


def _entry(size: str, questions: int) -> Entry:
    train, test = (f"{size}/{NAME.format(part=part)}" for part in ("train", "test"))
    return Entry(
        name=f"babi15-{size}",
        about=f"basic deduction, the original text, {questions:,} training questions",
        read=partial(read, size=size),
        folder="babi15",
        files=(File(train, TRAIN[size]), File(test, TEST)),
        counts={"train": questions, "test": 1_000},
        source=Source(
            (Remote(ARCHIVE),),
            ("http://www.thespermwhale.com/jaseweston/babi/", "https://s3.amazonaws.com/text-datasets/babi_"),
            convert,
        ),
        licence="CC BY 3.0 (Facebook, bAbI tasks data 1-20 v1.2)",
    )


EN, EN_10K = _entry("en", 1_000), _entry("en-10k", 10_000)
