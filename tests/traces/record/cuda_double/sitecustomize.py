"""Puts the GPU of this folder into torch, in every process that has the folder on PYTHONPATH."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder


class _Torch(MetaPathFinder):
    """Loads torch as it is, then puts the double into it."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def loaded(module):
            load(module)
            import cuda_double

            cuda_double.install(module)

        spec.loader.exec_module = loaded
        return spec


sys.meta_path.insert(0, _Torch())
