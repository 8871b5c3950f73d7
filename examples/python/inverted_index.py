#!/usr/bin/env python3
"""An inverted index: which files of a folder hold all of some words, and how often.

    python inverted_index.py shm:/dev/shm/words /usr/share/doc shared memory

The first run with an address indexes the folder; later ones, of any number of processes, find the index there and
answer at once. Without arguments it indexes this repository's pages in memory of its own.

A key is a word, a zero byte and a file; its value is how often the word is in the file. So the files of a word are a
range, and words that begin alike lie side by side.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import farleaf

WORD = re.compile(r"[a-z0-9]{2,40}")
FILE_BYTES_MAX = 1 << 20
PAGES = Path(__file__).resolve().parents[2] / "docs"


def postings(folder: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield a pair for each word of each file."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_size <= FILE_BYTES_MAX:
            words = Counter(WORD.findall(path.read_text(errors="ignore").lower()))
            name = str(path.relative_to(folder)).encode(errors="surrogateescape")[:900]
            for word, count in words.items():
                yield word.encode() + b"\0" + name, b"%d" % count


def files_of(index: farleaf.Table, word: str) -> dict[bytes, int]:
    """Return the files that hold `word`, and how often."""
    prefix = word.lower().encode() + b"\0"
    return {key[len(prefix) :]: int(count) for key, count in index.range(prefix=prefix)}


def similar(index: farleaf.Table, word: str) -> list[str]:
    """Return words that begin as `word` does, each found by a seek past the files of the one before."""
    stem, found = word.lower().encode()[:3], []
    pair = index.ceiling(stem)
    while pair is not None and pair[0].startswith(stem) and len(found) < 5:
        other = pair[0].split(b"\0")[0]
        found.append(other.decode())
        pair = index.higher(other + b"\0\xff")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pool", nargs="?", default="mem:", help="address of the pool (mem:)")
    parser.add_argument("folder", nargs="?", type=Path, default=PAGES, help="folder to index (this repository's docs)")
    parser.add_argument("words", nargs="*", default=["memory", "server", "lease"])
    args = parser.parse_args()
    if not args.folder.is_dir():
        parser.error(f"{args.folder} is not a folder")

    with farleaf.open(args.pool, create=True, pool_bytes="1GiB") as db:
        index = db.table("words", create=True)
        # Written last, so that a run that was stopped is repeated.
        done = b"\0" + str(args.folder.resolve()).encode(errors="surrogateescape")[:900]
        if done not in index:
            print(f"indexed {index.insert_many(postings(args.folder))} words of files in {args.folder}")
            index[done] = b""
        found = [files_of(index, word) for word in args.words]
        for word, files in zip(args.words, found):
            hint = "" if files else f"; words that begin alike: {', '.join(similar(index, word)) or 'none'}"
            print(f"{word}: {len(files)} files{hint}")
        print(f"all of {' '.join(args.words)}:")
        together = set(found[0]).intersection(*found[1:])
        ranked = sorted(together, key=lambda name: -min(files[name] for files in found))
        for name in ranked[:10]:
            print(f"  {name.decode(errors='replace')}  {[files[name] for files in found]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
