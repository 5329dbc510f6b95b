"""`python -m experiments.client_cases LIBRARY CASE ADDRESS`: one case, with the packages of one library alone."""

import sys

from experiments.client_cases.table import CLIENTS

CLIENTS[sys.argv[1]].cases[sys.argv[2]](sys.argv[3])
