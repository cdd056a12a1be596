"""A strategy outside the package. See ``rewrite.py``."""

AFTER = ("tp_overlap",)
CATALOGUE = {
    "parallelism.strategy": (
        "a strategy of your own",
        "a file whose function rewrites what stages run; see docs/extending",
    )
}
