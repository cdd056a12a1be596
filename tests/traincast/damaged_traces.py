"""Good traces of every format, damaged at random, and what the command line makes of them.

`python -m tests.traincast.damaged_traces 1000` damages so many and prints what is wrong; each has a
number, and `python -m tests.traincast.damaged_traces 1 137` makes number 137 alone, again the same,
and `500 0 nsys` those of one format.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import shutil
import sqlite3
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from google.protobuf.message import DecodeError

from sim.builder.strategies.exchange import Policy
from sim.runs.schedule_run import plan_of, run_plan
from tests.conftest import Kineto
from tests.traces import test_nsys, test_recorded, test_straggler_traces
from tests.traces.kineto import test_kineto_cpu
from tests.traincast.fuzzing import HUGE, LIMIT, VALUES, Hang, command, complaint, report
from traces.chakra import write as chakra
from traces.chakra.schema import (
    NODE_TYPES,
    GlobalMetadata,
    Node,
    read_nodes,
    set_attributes,
    write_messages,
)
from traces.hta import files as hta
from traces.own import perfetto

DAMAGED_BEFORE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError,
                  EOFError, sqlite3.Error, zlib.error, DecodeError)  # fmt: skip


def good(folder: Path) -> dict[str, Path]:
    """A folder of small good files of each format, by name."""
    times = {"F": 5e-3, "I": 4e-3, "W": 3e-3, "p2p": 5e-4}
    timeline = run_plan(plan_of("one_f_one_b", 2, 4, 1), times, Policy("direction"))
    out = {}
    for name in ("kineto", "hta", "gloo", "own", "chakra", "foreign", "nsys", "table", "recorder"):
        out[name] = folder / name
        out[name].mkdir()
    for rank in (0, 1):
        Kineto(out["kineto"]).write(_kineto(rank), rank)
        test_kineto_cpu.trace(Kineto(out["gloo"]), rank, 60 * rank)
        test_nsys.report(out["nsys"] / f"{rank}.sqlite", 10 * rank)
        _foreign(out["foreign"] / f"rank.{rank}.et", rank)
    hta.write_rank_files(timeline, out["hta"])
    perfetto.write(timeline, out["own"] / "timeline.json.gz")
    chakra.write(timeline, out["chakra"])
    table = test_straggler_traces.table({1: 0.0, 2: 0.5})
    table.to_parquet(out["table"] / "trace.parquet")
    test_recorded.written([*test_recorded.step(0, 0), *test_recorded.step(30, 1)], out["recorder"])
    return out


def _kineto(rank: int) -> list[dict[str, Any]]:
    """Two steps with a GEMM, a copy, an all-reduce on another stream and a wait for it."""
    k, out = Kineto, []
    group = {
        "Collective name": "allreduce", "Process Group Name": "0", "Group size": 2,
        "Process Group Ranks": "[0, 1]", "In msg nelems": 64,
        "Process Group Description": "mesh_tp",
    }  # fmt: skip
    for number in (3, 4):
        at, first = 1000 * number, 10 * number
        out += [
            k.event("user_annotation", f"ProfilerStep#{number}", at, 990),
            k.event("user_annotation", f"PP:{rank}F0", at + 5, 300),
            k.event("cpu_op", "aten::mm", at + 8, 10),
            *_launched("gemm", at + 10, at + 20, 300 + 20 * rank, first + 1),
            k.event("gpu_memcpy", "Memcpy DtoH", at + 345, 5, 7, device=0, stream=7),
            k.event("cpu_op", "aten::add", at + 30, 5),
            k.event("cpu_op", "record_param_comms", at + 40, 10, 100, Seq=number, **group),
            *_launched("ncclDevKernel_AllReduce", at + 42, at + 360, 140, first + 2, 9, **group),
            k.event("cuda_sync", "Stream Wait Event", at + 50, 0, 7, stream=7, wait_on_stream=9,
                wait_on_cuda_event_record_corr_id=first + 2, correlation=first + 3),
            k.event("cuda_runtime", "cudaStreamWaitEvent", at + 50, 2, 100, correlation=first + 3),
            *_launched("adam", at + 60, at + 510, 100, first + 4),
            k.event("cuda_runtime", "cudaDeviceSynchronize", at + 70, 545, 100, correlation=0),
        ]  # fmt: skip
    return out


def _launched(name: str, at: int, ts: int, dur: int, number: int, stream: int = 7, **args: Any):
    call = Kineto.event("cuda_runtime", "cudaLaunchKernel", at, 5, 100, correlation=number)
    more = {"device": 0, "stream": stream, "correlation": number, **args}
    return [call, Kineto.event("kernel", name, ts, dur, stream, **more)]


def _foreign(path: Path, rank: int) -> None:
    """A Chakra trace as others write them."""
    nodes = []
    for k, (kind, took) in enumerate([("COMP", 5), ("COMM_COLL", 3), ("MEM_LOAD", 0), ("COMP", 0)]):
        node = Node(id=k, name=f"node {k}", type=NODE_TYPES.index(kind), duration_micros=took)
        node.start_time_micros = 10 * k
        node.data_deps.extend([k - 1] if k else [])
        set_attributes(node, num_ops=1000, tensor_size=64, comm_type=0, comm_size=64, pg_name="0")
        nodes.append(node)
    other = "COMM_SEND" if rank == 0 else "COMM_RECV"
    node = Node(id=9, name="message", type=NODE_TYPES.index(other), duration_micros=2)
    set_attributes(node, comm_src=0, comm_dst=1, comm_tag=3, comm_size=8)
    with path.open("wb") as file:
        write_messages(file, GlobalMetadata(version="0.0.4"), iter([*nodes, node]))


def damaged(whole: Path, folder: Path, rng: random.Random) -> Path:
    """A copy of a folder of good files, in which one or more are damaged."""
    made = folder / whole.name
    shutil.copytree(whole, made)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        file = rng.choice(sorted(made.iterdir()))
        how = _bytes if rng.random() < 0.2 else DAMAGES[whole.name]
        with contextlib.suppress(*DAMAGED_BEFORE):
            how(file, rng)
    return made


def _bytes(path: Path, rng: random.Random) -> None:
    """Cut off, a few bytes changed or left out, packed twice, or in another encoding."""
    data = bytearray(path.read_bytes())
    match rng.randrange(6):
        case 0:
            data = data[: rng.randrange(len(data))]
        case 1:
            for _ in range(rng.choice((1, 5, 50))):
                data[rng.randrange(len(data))] = rng.randrange(256)
        case 2:
            at = rng.randrange(len(data))
            del data[at : at + rng.choice((1, 20, 400))]
        case 3:
            data = bytearray(gzip.compress(bytes(data), mtime=0))
        case 4:
            data = bytearray(_text(path).encode(rng.choice(("utf-16", "utf-8-sig", "latin-1")),
                                                "replace"))  # fmt: skip
        case _:
            data = data * 2
    path.write_bytes(bytes(data))


def _text(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", "replace")


def _json(path: Path, rng: random.Random) -> None:
    """A value, at any depth, replaced, left out, doubled or put into lists of lists."""
    content = json.loads(_text(path))
    holder, key = _place(content, rng)
    match rng.randrange(5):
        case 0 | 1:
            holder[key] = rng.choice(VALUES)
        case 2:
            del holder[key]
        case 3 if isinstance(holder, list):
            holder.insert(key, holder[key])
        case 3:
            holder[f"{key} "] = holder[key]
        case _:
            holder[key] = _deep(rng.choice((3, 500, 5000)))
    text = _dumped(content).replace(json.dumps(HUGE), "9" * 5000)
    packed = path.name.endswith(".gz")
    data = text.encode("utf-8", "replace")
    path.write_bytes(gzip.compress(data, mtime=0) if packed else data)


DEEP = "<lists in lists>"


def _deep(levels: int) -> str:
    return f"{DEEP}{levels}>"


def _dumped(content: Any) -> str:
    text = json.dumps(content, indent=None)
    for levels in (3, 500, 5000):
        text = text.replace(json.dumps(_deep(levels)), "[" * levels + "]" * levels)
    return text


def _place(content: Any, rng: random.Random) -> tuple[Any, Any]:
    """A holder and the key of something in it: mostly deep inside."""
    holder, key = content, None
    while True:
        keys = [*holder] if isinstance(holder, dict) else [*range(len(holder))]
        key = rng.choice(keys)
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.12:
            return holder, key
        holder = inner


ATTRIBUTES: tuple[Any, ...] = (
    -1, 0, 2**62, -1.0, 1e308, float("nan"), float("inf"), "", "x", "{}", True, [], [1, 2], [1.5],
    '{"type": "Fixed"}',
)  # fmt: skip


def _chakra(path: Path, rng: random.Random) -> None:
    """A field or an attribute of a node set to something else, or a node left out or doubled."""
    with path.open("rb") as file:
        nodes = [*read_nodes(file)]
    node = rng.choice(nodes)
    match rng.randrange(5):
        case 0:
            key = rng.choice(("id", "type", "start_time_micros", "duration_micros"))
            setattr(node, key, rng.choice((0, 1, 5, 99, 2**31 - 1, 2**40, 2**64 - 1)))
        case 1:
            getattr(node, rng.choice(("data_deps", "ctrl_deps"))).append(
                rng.choice((0, 1, 2, 5, 99, 2**63, node.id))
            )
        case 2:
            nodes.remove(node) if rng.random() < 0.5 else nodes.append(node)
        case _:
            attribute = rng.choice(node.attr)
            name = attribute.name
            node.attr.remove(attribute)
            value = rng.choice(ATTRIBUTES)
            if rng.random() < 0.8:
                set_attributes(node, **{name: value})
    with path.open("wb") as file:
        write_messages(file, GlobalMetadata(version="0.0.4"), iter(nodes))


def _sqlite(path: Path, rng: random.Random) -> None:
    """A cell, a row, a column's name or a table."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        table = rng.choice([*test_nsys.TABLES])
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        column = rng.choice(columns)
        match rng.randrange(6):
            case 0:
                database.execute(f"DROP TABLE {table}")
            case 1:
                database.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO other")
            case 2:
                database.execute(f"DELETE FROM {table} WHERE random() % 2")
            case _:
                value = rng.choice((None, "x", "", b"\x00\xff", -1, 0, 2**40, 2**63 - 1, -(2**63),
                                    1e308, float("inf"), 1.5))  # fmt: skip
                rows = [row[0] for row in database.execute(f"SELECT rowid FROM {table}")]
                some = rng.choice(rows)
                where = "" if rng.random() < 0.2 else f" WHERE rowid = {some}"
                database.execute(f"UPDATE {table} SET {column} = ?{where}", (value,))


def _table(path: Path, rng: random.Random) -> None:
    """A cell, a row or a column."""
    table = pd.read_parquet(path)
    column, row = rng.choice([*table]), rng.randrange(len(table))
    match rng.randrange(6):
        case 0:
            table = table.drop(columns=column)
        case 1:
            table = table.drop(index=row)
        case 2:
            table = pd.concat([table, table.iloc[[row]]], ignore_index=True)
        case 3:
            table[column] = rng.choice([None, "x", -1.0, 1e308, float("nan"), 2**40, True, [[1]]])
        case _:
            values = table[column].tolist()
            values[row] = rng.choice((None, -1, 0, 1e308, float("nan"), float("inf"), 2**40, 7))
            table[column] = values
    table.to_parquet(path)


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "kineto": _json, "hta": _json, "gloo": _json, "own": _json, "recorder": _json,
    "chakra": _chakra, "foreign": _chakra, "nsys": _sqlite, "table": _table,
}  # fmt: skip


def attempt(number: int, whole: dict[str, Path], folder: Path) -> tuple[str, str]:
    """Damage number so and so: what it was, and what is wrong with what came of it."""
    rng = random.Random(number)
    name = [*whole][number % len(whole)]
    path = damaged(whole[name], folder / str(number), rng)
    words = ["analyze", "replay"][(number // len(whole)) % 2]
    try:
        ended = command(words, path, "--json")
    except Hang:
        return f"{number} {words} {name}", f"took over {LIMIT} s"
    except RecursionError as error:
        return f"{number} {words} {name}", repr(error)
    shutil.rmtree(folder / str(number))
    return f"{number} {words} {name} {ended[0]}", complaint(*ended)


def main(count: int, first: int = 0, name: str = "") -> int:
    """Try so many, of one format or all; print what is wrong and figures; returns how many are."""
    with tempfile.TemporaryDirectory() as folder:
        whole = good(Path(folder))
        every = len(whole) if name else 1
        first += ([*whole].index(name) - first) % every if name else 0
        numbers = range(first, first + every * count, every)
        return report(numbers, lambda n: attempt(n, whole, Path(folder)), count == 1)


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:3]), *sys.argv[3:])))
