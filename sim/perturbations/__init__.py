"""What is not as it should be: slow ranks and links, noise, pauses, uneven microbatches."""

from sim.perturbations.apply import MOST_OPS, perturbed
from sim.perturbations.links import slowed

__all__ = ["MOST_OPS", "perturbed", "slowed"]
