"""Tiny runs, as in the tests of the trainer."""

from tests.trainer.conftest import launch, plan_folder, tiny


__all__ = ["launch", "plan_folder", "tiny"]
