"""Runs the command line as `python -m cde_hf.cli`, which `accelerate launch -m` needs."""

from .main import main


main()
