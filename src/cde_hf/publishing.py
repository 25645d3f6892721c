"""
Publishes a checkpoint on the Hub.

1. The files of the checkpoint are put together in a new folder: no training state, no pickles, no hidden files.
2. A card is written, unless the checkpoint has one that somebody wrote.
3. Every text file is searched for access tokens; one that holds any is refused.
4. The folder is uploaded in one commit, so that the repository has all of it or nothing.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HTTPError  # the latter of whichever HTTP library it uses
from transformers.utils import logging

from .model_card import CardFacts, make_model_card


logger = logging.get_logger(__name__)

_CARD = "README.md"
_CARD_MARK = "contextual-document-embeddings"
_TEXT_ENDINGS = (".md", ".json", ".py", ".txt", ".yaml", ".yml", ".jinja", ".log", ".csv")
_STATE_FILES = ("optimizer", "scheduler", "rng_state", "scaler", "trainer_state", "training_args", "events.out")
_PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}\b")
_ADVICE = {
    401: "The Hub does not know this token, or there is none. Log in with `hf auth login`, or set `HF_TOKEN`.",
    403: "The token may not write there. Use one with the permission to write.",
    429: "The Hub wants fewer requests. Wait some minutes and push again.",
}


def push_to_hub(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    facts: CardFacts | None = None,
    private: bool = False,
    token: str | None = None,
    dry_run: str | os.PathLike | None = None,
) -> str:
    """
    Publishes a checkpoint with its card, in one commit.

    Args:
        folder (`str` or `os.PathLike`):
            What `save_checkpoint`, `save_with_context`, `export_onnx`, or `save` of a contextualized model wrote.
        repo_id (`str`):
            Name of the repository, `user/name`, which is made if it is not there.
        facts (`CardFacts`, *optional*):
            What the card says beyond what is in the checkpoint. Not used if the checkpoint has a card of your own.
        private (`bool`, *optional*, defaults to `False`):
            Whether a new repository is private.
        token (`str`, *optional*):
            Access token. Defaults to that of the login.
        dry_run (`str` or `os.PathLike`, *optional*):
            A new folder, to which exactly what would be uploaded is written. Nothing is uploaded.

    Returns:
        `str`: Address of the repository, or the folder of the dry run.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo_id):
        raise ValueError(f"`repo_id` must be of the form `user/name`, got `{repo_id}`.")
    if dry_run is not None:
        target = Path(dry_run)
        if target.exists():
            raise FileExistsError(f"`{target}` exists. Remove it or give another folder for the dry run.")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
            _gather(Path(folder), Path(temporary) / "new", repo_id, facts, token)
            os.replace(Path(temporary) / "new", target)
        return str(target)
    with tempfile.TemporaryDirectory() as temporary:
        _gather(Path(folder), Path(temporary) / "new", repo_id, facts, token)
        return _upload(Path(temporary) / "new", repo_id, private=private, token=token)


def _gather(folder: Path, target: Path, repo_id: str, facts: CardFacts | None, token: str | None) -> None:
    """Puts what is to be published into a new folder."""
    card = make_model_card(folder, repo_id, facts)
    target.mkdir()
    for path in _published_files(folder):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / path, target / path)
    if not _is_own_card(target / _CARD):
        (target / _CARD).write_text(card, encoding="utf-8")
    for path in sorted(target.rglob("*")):
        if path.suffix in _TEXT_ENDINGS and _holds_token(path.read_text(encoding="utf-8", errors="ignore"), token):
            raise ValueError(
                f"`{path.relative_to(target)}` holds what looks like an access token, so nothing is published. Remove "
                "it from the file, and revoke the token if it was shown to anybody."
            )


def _published_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        is_hidden = any(part.startswith((".", "__pycache__", "checkpoint-")) for part in relative.parts)
        is_state = path.name.startswith(_STATE_FILES) or path.suffix in _PICKLE_ENDINGS
        if path.is_file() and not is_hidden and is_state:
            logger.info(f"Left out `{relative}`: it is no part of the model.")
        elif path.is_file() and not is_hidden:
            yield relative


def _is_own_card(path: Path) -> bool:
    """Whether there is a card that neither this package nor sentence-transformers made."""
    if not path.exists():
        return False
    text = path.read_text(encoding="utf-8")
    return _CARD_MARK not in text and "This is a [sentence-transformers]" not in text


def _upload(folder: Path, repo_id: str, *, private: bool, token: str | None) -> str:
    api = HfApi(token=token)
    try:
        url = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message="Upload a model made with cde-hf")
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        fallback = "Check the name of the repository and the card."
        if status is None or status >= 500:
            fallback = "That is a fault of the server: push again later."
        message = _without_token(str(error).splitlines()[0] if str(error) else type(error).__name__, token)
        raise OSError(
            f"`{repo_id}` was not published: the Hub answered {status} ({message}). {_ADVICE.get(status, fallback)}"
        ) from None
    except (HTTPError, ConnectionError) as error:
        message = _without_token(f"{type(error).__name__}: {error}", token)
        raise OSError(
            f"`{repo_id}` was not published: the connection failed ({message}). Check the network and push again; a "
            "commit is whole or not there."
        ) from None
    return str(url)


def _holds_token(text: str, token: str | None) -> bool:
    return _TOKEN.search(text) is not None or _without_token(text, token) != text


def _without_token(text: str, token: str | None) -> str:
    for secret in {token, get_token()} - {None, ""}:
        text = text.replace(secret, "[token]")
    return text


__all__ = ["push_to_hub"]
