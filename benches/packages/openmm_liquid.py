"""OpenMM: molecular dynamics of argon by its CUDA platform."""

import numpy as np
import openmm as mm
import steps

SIDE, SPACE = 16, 0.4
system, force = mm.System(), mm.NonbondedForce()
force.setNonbondedMethod(mm.NonbondedForce.CutoffPeriodic)
force.setCutoffDistance(1.0)
box = SIDE * SPACE
system.setDefaultPeriodicBoxVectors((box, 0, 0), (0, box, 0), (0, 0, box))
for _ in range(SIDE**3):
    system.addParticle(39.9)
    force.addParticle(0, 0.34, 0.99)
system.addForce(force)
integrator = mm.LangevinMiddleIntegrator(120, 1, 0.002)
integrator.setRandomNumberSeed(1)
context = mm.Context(system, integrator, mm.Platform.getPlatformByName("CUDA"), {"DeterministicForces": "true"})
context.setPositions(SPACE * np.mgrid[:SIDE, :SIDE, :SIDE].reshape(3, -1).T)
context.setVelocitiesToTemperature(120, 1)


def step(number):
    integrator.step(20)
    return steps.digest(context.getState(getPositions=True).getPositions(asNumpy=True)._value)


steps.make(step)
