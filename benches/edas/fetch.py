"""An object of the store, in the host's memory: ranges of 8 MB, 16 at a time, as Rekindle's memory daemon has them."""

import http.client
import threading
from urllib.parse import urlsplit

import numpy

PIECE, TOGETHER = 8 << 20, 16


def fetch(url, size):
    """Its bytes, an array of NumPy's. What fails in a thread is raised."""
    place, data = urlsplit(url), numpy.empty(size, "uint8")
    room, failures = memoryview(data), []

    def part(number):
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=120)
        try:
            for start in range(number * PIECE, size, PIECE * TOGETHER):
                end = min(start + PIECE, size)
                connection.request("GET", place.path, headers={"Range": f"bytes={start}-{end - 1}"})
                answer = connection.getresponse()
                while start < end and (count := answer.readinto(room[start:end])):
                    start += count
                if answer.status != 206 or start < end:
                    raise OSError(f"{url} answered {answer.status}, and {end - start} bytes are missing")
        except Exception as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=part, args=(number,)) for number in range(min(TOGETHER, -(-size // PIECE)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return data
