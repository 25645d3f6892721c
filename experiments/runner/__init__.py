"""The runner of the experiments: runs kept by what they depend on, one table of results, a page made from it alone."""
