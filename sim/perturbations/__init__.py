"""Perturbations of a job: slow ranks and links, noise, pauses, uneven microbatches."""

from sim.perturbations.apply import perturbed
from sim.perturbations.links import slowed

__all__ = ["perturbed", "slowed"]
