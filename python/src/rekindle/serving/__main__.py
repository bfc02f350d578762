"""`python __main__.py FILE NAME REPORT`, started by its path: where it lies is no place to import from."""

import sys

del sys.path[0]

from rekindle.serving.main import main  # noqa: E402

main(*sys.argv[1:])
