"""A function as an earlier package serves it: from before messages had versions, and arrays on the GPU were arguments."""

import numpy
import rekindle
from rekindle import codec, passing
from rekindle.serving import dispatch, main

app = rekindle.App("earlier")


class HandingOn:
    """What a call said of its result's arrays then. It took these fields alone."""

    @staticmethod
    def of(said):
        return HandingOn.earlier(**said)

    @staticmethod
    def earlier(least, uses, expiry, again=False):
        return passing.HandingOn(least, uses, expiry, again)


def tell(report, message=None, tell=main.tell, **said):
    tell(report, **said)


def about(self):
    return {"methods": list(self.target.methods), **self.target.limits.described()}


# It knew no arrays of a caller's GPU, and heard and said nothing of versions.
codec.ON_GPU = None
dispatch.HandingOn, dispatch.version_in, dispatch.Dispatch.about, main.tell = HandingOn, lambda _: 1, about, tell


@app.cls(gpu="emulated", share=False, max_containers=1)
class Earlier:
    @rekindle.method()
    def double(self, array):
        assert type(array) is numpy.ndarray, type(array)
        return 2 * array

    @rekindle.method()
    def fail(self, array):
        raise TypeError("the user's own")
