"""Where many runs are simulated: processes of this machine, or a cluster of Ray or Dask.

joblib gives the calls to either. On a cluster, workers read recipes and topologies by their paths,
so these lie in a folder that all of its machines have.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import joblib
from joblib.parallel import get_active_backend

from schedules.input_error import InputError

ROUND = 4  # calls of a round per worker, where a backend returns results round by round


def unordered(calls: Iterable[Any], jobs: int) -> Iterator[Any]:
    """Yield what delayed calls return, as they are ready; from Ray in rounds, since it only lists.

    ``jobs`` are the processes at a time, -1 as many as there are CPUs.
    """
    backend, _ = get_active_backend()
    if backend.supports_return_generator:
        yield from joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(calls)
        return
    left = iter(calls)
    while some := list(itertools.islice(left, ROUND * joblib.effective_n_jobs(jobs))):
        yield from joblib.Parallel(n_jobs=jobs)(some)


def on(backend: str | None, address: str | None = None) -> AbstractContextManager[None]:
    """Return a context in which :func:`unordered` uses this backend, "ray" or "dask".

    ``address`` is that of a cluster which runs already, such as tcp://head:8786; without it one
    starts on this machine. Raises InputError for another name, for what is not installed, and where
    nothing answers.
    """
    if backend is None:
        if address is not None:
            raise InputError(f"--address {address} is of a cluster; say --backend ray or dask too")
        return nullcontext()
    if backend not in BACKENDS:
        raise InputError(f"--backend is {' or '.join(BACKENDS)}, not {backend!r}")
    if address == "":
        raise InputError("--address is empty; give HOST:PORT, or leave it out")
    return _connected(backend, address)


@contextmanager
def _connected(backend: str, address: str | None) -> Iterator[None]:
    package, connect = BACKENDS[backend]
    try:
        importlib.import_module(package)
    except ImportError:
        raise InputError(
            f"--backend {backend} needs a package; pip install 'traincast[{backend}]' adds it"
        ) from None
    with ExitStack() as stack:
        try:
            _answers(address)
            connect(address, stack)
        except Exception as error:  # Ray raises that itself where a start takes over 30 s
            said = " ".join(str(error).split()) or type(error).__name__
            where = f"at {address}" if address else "on this machine"
            raise InputError(f"no {backend} cluster answers {where}: {said[:200]}") from error
        stack.enter_context(joblib.parallel_config(backend))
        yield


def _answers(address: str | None) -> None:
    """Raise OSError or ValueError unless something listens at HOST:PORT; Ray itself asks for long.

    Ray's own word "auto" passes.
    """
    if address and address != "auto":
        host, _, port = address.rpartition("://")[2].rpartition(":")
        if not (host and port.isdecimal()):
            raise ValueError("the address is not HOST:PORT")
        socket.create_connection((host, int(port)), SECONDS).close()


def _dask(address: str | None, stack: ExitStack) -> None:
    import distributed

    local = {"threads_per_worker": 1, "dashboard_address": None}
    made = distributed.Client(address, timeout=SECONDS) if address else distributed.Client(**local)
    stack.enter_context(made)


def _ray(address: str | None, stack: ExitStack) -> None:
    import ray
    from ray.util.joblib import register_ray

    where = {"address": address} if address else {"include_dashboard": False}
    stack.callback(ray.shutdown)
    ray.init(**where, log_to_driver=False, configure_logging=False)
    register_ray()
    logging.getLogger("ray.util.multiprocessing.pool").setLevel(logging.ERROR)  # of arguments


SECONDS = 10  # that a cluster may take to answer
BACKENDS: dict[str, tuple[str, Callable[[str | None, ExitStack], None]]] = {
    "ray": ("ray", _ray),
    "dask": ("distributed", _dask),
}
"""The package of each, and how to connect; what the context has to undo goes on its stack."""
