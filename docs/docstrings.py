"""Rewrites docstrings in Hugging Face's form as mkdocstrings reads them, in Google's: `mkdocs.yml` names this file."""

import re
from typing import Any

import griffe


_UNION = re.compile(r"`[^`]+`(?:(?:,|,? or) `[^`]+`)+")
_ARGUMENT = re.compile(r"^( +[\w, ]+) \((`[^\n]*)\):$", re.MULTILINE)


def _plain_type(match: re.Match) -> str:
    kind, *rest = re.split(r",? \*optional\*", match[2], maxsplit=1)
    kind = " | ".join(re.findall("`([^`]+)`", kind)) if _UNION.fullmatch(kind) else kind.replace("`", "")
    return f"{match[1]} ({kind}{', optional' if rest else ''}):"


def rewrite(text: str) -> str:
    """Takes the marks out of the types of arguments, and the brackets off names such as [`evaluate`]."""
    return re.sub(r"\[(`[^`\]]+`)\](?!\()", r"\1", _ARGUMENT.sub(_plain_type, text))


class HuggingFaceDocstrings(griffe.Extension):
    """Rewrites every docstring before it is shown."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Is called for every object of the package."""
        if obj.docstring is not None:
            obj.docstring.value = rewrite(obj.docstring.value)
