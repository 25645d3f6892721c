"""What users read: lines of output, and the words that many messages share."""

import os
import sys
from typing import Any


def say(text: str) -> None:
    """Writes a line for the user, from the first process only."""
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write(printable(text) + "\n")
        sys.stdout.flush()


def printable(text: str) -> str:
    """Replaces control characters, with which a document or a file could change what the terminal shows."""
    return "".join(each if each.isprintable() or each == "\n" else " " for each in text)


def count_of(number: int, noun: str) -> str:
    """Returns a number and its noun, such as `"1 query"` or `"2,000 queries"`."""
    if number != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun}"


def kind_of(value: Any) -> str:
    """Says what a value is that has the wrong type."""
    return "`None`" if value is None else f"a `{type(value).__name__}`"


__all__ = ["count_of", "kind_of", "printable", "say"]
