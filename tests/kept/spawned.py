"""Queues, locks and events between processes that were not forked: their semaphores have names."""

import multiprocessing
import sys

from kept import main


def serve(questions, answers, lock, event):
    with lock:
        event.set()
    for number in iter(questions.get, None):
        with lock:
            answers.put(number * 2)


def setup(method):
    context = multiprocessing.get_context(method)
    questions, answers, lock, event = context.Queue(), context.Queue(), context.Lock(), context.Event()
    child = context.Process(target=serve, args=(questions, answers, lock, event), daemon=True)
    lock.acquire()
    child.start()
    assert not event.wait(0.05)

    def verify():
        assert not event.wait(0.05), "the child must wait for the lock"
        lock.release()
        assert event.wait()
        for number in range(100):
            questions.put(number)
            assert answers.get() == number * 2
        # Semaphores that are made anew find those that are there.
        other = context.Queue()
        other.put("new")
        assert other.get() == "new"
        questions.put(None)
        child.join()
        assert child.exitcode == 0

    return verify


if __name__ == "__main__":
    main(setup)
    sys.stdout.flush()
