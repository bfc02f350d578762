"""Taichi: a field that each step changes, kernels compiled by its own compiler."""

import steps
import taichi as ti

ti.init(arch=ti.cuda, offline_cache=False)
field = ti.field(ti.f32, shape=(128, 128))


@ti.kernel
def paint(time: ti.f32):
    for i, j in field:
        field[i, j] = ti.sin(time + i * 0.1) * ti.cos(j * 0.2) + 0.5 * field[i, j]


def step(number):
    paint(number * 0.03)
    return steps.digest(field.to_numpy())


steps.make(step)
