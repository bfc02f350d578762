"""A function as it is told to: a line of JSON asks, a line of JSON answers."""

import json
import sys


def obey(function):
    """Does what lines name, with their arguments: methods of the function's."""
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(function, name)(*arguments)), flush=True)
