"""Calls the functions of `function.toml`, which are in C and in Rust, as it would call functions in Python.

examples/native/build /tmp/native && rekindle deploy /tmp/native/function.toml && python examples/native/call.py
"""

import numpy
import rekindle

saxpy, scale, total = (rekindle.Function.from_name("native", name) for name in ("saxpy", "scale", "total"))


def main():
    x, y = numpy.arange(1000, dtype="float32"), numpy.ones(1000, "float32")
    print("saxpy, in C:   ", saxpy.remote(2.0, x, y)[:4])
    print("scale, in Rust:", scale.remote(x, 0.5)[:4])
    # Several at once: each has an instance, which is a thread with a stream.
    print("eight at once: ", [int(row[1]) for row in scale.map([x] * 8, range(8))])
    # The array stays on the GPU from one function to the next.
    print("handed on:     ", total.remote(scale.remote(x, 3, keep=True)))


if __name__ == "__main__":
    main()
