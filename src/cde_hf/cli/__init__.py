"""The command `cde-hf`: one function per command, each a thin layer over public functions."""

from .main import build_parser, main


__all__ = ["build_parser", "main"]
