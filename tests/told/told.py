"""What a program is told by the lines of a file, which others add while it runs."""

import time


def lines(file):
    """Each whole line once, as it comes, without end. The file is open while it is read alone: an image in which it is open needs it as
    long as it was, and programs that are restored from the image are told more."""
    done = size = 0
    while True:
        time.sleep(0.005)
        if not file.exists() or file.stat().st_size == size:
            continue
        text = file.read_text()
        size = len(text)
        whole = text.split("\n")[:-1]
        new, done = whole[done:], max(done, len(whole))
        yield from new
