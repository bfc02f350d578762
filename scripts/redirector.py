"""Has numba-cuda's redirector come with the first import of numba, and not with every Python that starts.

`scripts/setup` copies it into `.venv`, in place of the line by which numba-cuda has it loaded at each start: with it come
`pathlib`, `tempfile`, `urllib` and others, which take twice as long as all else that Python does before a program begins.
"""

import sys


class AtFirst:
    """Finds nothing; goes once numba is looked for, and the redirector takes its place."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "numba":
            sys.meta_path.remove(AtFirst)
            import _numba_cuda_redirector  # noqa: F401
        return


sys.meta_path.insert(0, AtFirst)
