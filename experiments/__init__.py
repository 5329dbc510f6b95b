"""Studies of the package, run from a checkout as `python -m experiments.NAME`; no part of the wheel."""
