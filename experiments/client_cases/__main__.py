"""`python -m experiments.client_cases LIBRARY CASE ADDRESS`: one case, with the packages of one library alone."""

import sys

from experiments.client_cases import CLIENTS

CLIENTS[sys.argv[1]](sys.argv[3]).run(sys.argv[2])
