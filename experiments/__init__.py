"""The experiments on real data. `python -m experiments --help` lists them."""
