"""The connection to Qdrant: its package, a client for a folder or a server, and a server's failures in words."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from qdrant_client import QdrantClient


def import_qdrant() -> Any:
    """The package of Qdrant's client."""
    try:
        import qdrant_client
    except ImportError as error:
        raise ImportError("The index in Qdrant needs a package: `pip install 'cde-hf[qdrant]'`.") from error
    return qdrant_client


def connect(location: "str | Path | QdrantClient") -> "QdrantClient":
    """A client for a folder, for the URL of a server, or the one that is given."""
    if not isinstance(location, (str, Path)):
        return location
    is_url = str(location).startswith(("http://", "https://"))
    return import_qdrant().QdrantClient(**({"url": str(location)} if is_url else {"path": str(location)}))


@contextmanager
def clear_errors() -> Iterator[None]:
    """Says what to do when a server refuses, fails or cannot be reached. Also a decorator."""
    exceptions = import_qdrant().http.exceptions
    try:
        yield
    except exceptions.UnexpectedResponse as error:
        content = error.content[:200].decode(errors="replace")
        answer = f"Qdrant answered {error.status_code} ({error.reason_phrase}): {content}"
        if error.status_code in (401, 403):
            raise PermissionError(
                f"{answer}. It wants a key that may do this. Give `QdrantClient(url=…, api_key=…)` in place of the "
                "URL."
            ) from error
        raise ConnectionError(
            f"{answer}. Expected a success: look into the server's log and try again. An upload goes on where it was."
        ) from error
    except exceptions.ResponseHandlingException as error:
        raise ConnectionError(
            f"Qdrant gave no answer that can be read ({error.source}). See that its server runs at this URL and try "
            "again. An upload goes on where it was."
        ) from error


__all__ = ["clear_errors", "connect", "import_qdrant"]
