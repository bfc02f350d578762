"""NVIDIA Warp: particles in a hash grid, rays into a mesh, and a graph that was captured."""

import numpy as np
import steps
import warp as wp

COUNT, RAYS, REACH, DEVICE = 20_000, 10_000, 0.2, "cuda:0"


@wp.kernel
def push(x: wp.array(dtype=wp.vec3), grid: wp.uint64, force: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    total = wp.vec3(0.0, -9.8, 0.0)
    for j in wp.hash_grid_query(grid, x[i], 0.2):
        apart = x[i] - x[j]
        length = wp.length(apart)
        if length > 0.0 and length < 0.2:
            total += apart / length * (0.2 - length) * 1000.0
    force[i] = total


@wp.kernel
def move(x: wp.array(dtype=wp.vec3), v: wp.array(dtype=wp.vec3), force: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    v[i] = (v[i] + force[i] * 0.001) * 0.999
    x[i] = x[i] + v[i] * 0.001


@wp.kernel
def look(mesh: wp.uint64, hits: wp.array(dtype=float)):
    i = wp.tid()
    query = wp.mesh_query_ray(mesh, wp.vec3(0.01 * float(i % 100), 0.01 * float(i / 100), -1.0), wp.vec3(0.0, 0.0, 1.0), 10.0)
    if query.result:
        hits[i] = query.t


random = np.random.default_rng(0)
x = wp.array(3 * random.random((COUNT, 3), np.float32), dtype=wp.vec3, device=DEVICE)
v, force = (wp.zeros(COUNT, dtype=wp.vec3, device=DEVICE) for _ in range(2))
hits, grid = wp.zeros(RAYS, dtype=float, device=DEVICE), wp.HashGrid(64, 64, 64, device=DEVICE)
corners = wp.array(random.random((300, 3), np.float32), dtype=wp.vec3, device=DEVICE)
mesh = wp.Mesh(points=corners, indices=wp.array(np.arange(300, dtype=np.int32), device=DEVICE))
wp.load_module(device=DEVICE)
with wp.ScopedCapture(device=DEVICE) as captured:
    wp.launch(move, COUNT, [x, v, force], device=DEVICE)
    wp.launch(look, RAYS, [mesh.id, hits], device=DEVICE)


def step(number):
    grid.build(x, REACH)
    wp.launch(push, COUNT, [x, grid.id, force], device=DEVICE)
    wp.capture_launch(captured.graph)
    # From a pool of the driver's.
    copy = wp.empty(COUNT, dtype=wp.vec3, device=DEVICE)
    wp.copy(copy, x)
    return steps.digest(copy.numpy()) + steps.digest(hits.numpy())


steps.make(step)
