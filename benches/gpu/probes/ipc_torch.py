"""torch's CUDA tensors between processes: the program that `ipc.py` runs.

The first process puts tensors into a queue of `torch.multiprocessing` (spawn), the other multiplies them where they are and says
so. Each step prints `STEP right`, or what is wrong. Two tensors stay shared for good; one is made anew for each step, so that
memory is let go of while others are shared, and its event with it.
"""

import time

import torch
import torch.multiprocessing as multiprocessing

SIZE = 1 << 20


def other(line, answers):
    large, small = line.get()
    while True:
        factor, fresh = line.get()
        large *= factor
        small += 1
        fresh.fill_(float(factor))
        del fresh
        torch.cuda.synchronize()
        answers.put(factor)


def main():
    context = multiprocessing.get_context("spawn")
    line, answers = context.SimpleQueue(), context.SimpleQueue()
    context.Process(target=other, args=(line, answers), daemon=True).start()
    large = torch.ones(SIZE, device="cuda", dtype=torch.int64)
    small = torch.zeros(16, device="cuda", dtype=torch.int64)
    line.put((large, small))
    wanted = step = 1
    while True:
        factor = step % 5 + 2
        wanted = wanted * factor % (1 << 62)
        fresh = torch.zeros(SIZE // 4, device="cuda")
        line.put((factor, fresh))
        assert answers.get() == factor
        large %= 1 << 62
        found = (int(large.min()), int(large.max()), int(small.sum()), float(fresh.min()))
        right = found == (wanted, wanted, 16 * step, float(factor))
        print(step, "right" if right else f"wrong: {found}", flush=True)
        # What does not overflow is compared exactly.
        if wanted > 1 << 40:
            large.fill_(1)
            wanted = 1
        step += 1
        time.sleep(0.05)


if __name__ == "__main__":
    main()
