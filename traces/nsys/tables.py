"""Reads the tables of an SQLite export of Nsight Systems that a recording needs, as data frames."""

from __future__ import annotations

import re
import sqlite3

import pandas as pd

COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""CUPTI's kinds of copies by number, with the names of PyTorch's profiler and HTA."""
STEP_RANGE = "ProfilerStep#3, step 3 or iteration 3"
_STEP = re.compile(
    r"(?:ProfilerStep#|(?:train[ _]?)?step[ _:#]*|iter(?:ation)?[ _:#]*)([0-9]{1,9})", re.I
)
_PROCESS = ~0xFFFFFF  # a globalTid is a globalPid and, in its last 24 bits, a thread
MOST = 2**61  # nanoseconds; no number of a device, stream or call is above it
_NAMES = {"name", "full", "copyKind", "stream"}  # all other columns are whole numbers
_IDS = {"process", "globalTid"}  # these use all 64 bits
_SYNCS = ["start", "process", "type", "stream", "correlation", "on_stream", "on_call"]
_COLUMNS = ["start", "end", "device", "stream", "correlation", "process", "name", "full", "kind"]


def gpu_ops(database: sqlite3.Connection) -> pd.DataFrame:
    """Return kernels, copies and memory sets: nanoseconds, device, stream, correlation, names.

    A kernel's full name has what its short one lacks, such as ``deep_ep::internode::`` dispatch.
    """
    common = "start, end, deviceId AS device, 'stream ' || streamId AS stream, "
    common += "correlationId AS correlation, globalPid AS process"
    parts = []
    if _has(database, "CUPTI_ACTIVITY_KIND_KERNEL"):
        kernels = _select(
            database,
            f"SELECT {common}, short.value AS name, whole.value AS full "
            "FROM CUPTI_ACTIVITY_KIND_KERNEL LEFT JOIN StringIds short ON short.id = shortName "
            "LEFT JOIN StringIds whole ON whole.id = demangledName",
        )
        parts.append(kernels.assign(kind="kernel"))
    if _has(database, "CUPTI_ACTIVITY_KIND_MEMCPY"):
        copies = _select(database, f"SELECT {common}, copyKind FROM CUPTI_ACTIVITY_KIND_MEMCPY")
        kinds = copies.pop("copyKind").map(lambda kind: COPIES.get(kind, f"kind {kind}"))
        parts.append(copies.assign(name="Memcpy " + kinds.astype(str), kind="copy"))
    if _has(database, "CUPTI_ACTIVITY_KIND_MEMSET"):
        sets = _select(database, f"SELECT {common} FROM CUPTI_ACTIVITY_KIND_MEMSET")
        parts.append(sets.assign(name="Memset", kind="copy"))
    return _joined(parts)


def calls(database: sqlite3.Connection) -> pd.DataFrame:
    """Return calls of the CUDA runtime likewise; their streams are threads, and their device -1."""
    if not _has(database, "CUPTI_ACTIVITY_KIND_RUNTIME"):
        return _joined([])
    table = _select(
        database,
        "SELECT start, end, -1 AS device, globalTid, correlationId AS correlation, value AS name "
        "FROM CUPTI_ACTIVITY_KIND_RUNTIME LEFT JOIN StringIds ON id = nameId",
    )
    thread = pd.to_numeric(table.pop("globalTid"), errors="coerce").fillna(0).astype("int64")
    return _joined(
        [table.assign(process=thread & _PROCESS, stream="host " + thread.astype(str), kind="host")]
    )


def syncs(database: sqlite3.Connection) -> pd.DataFrame:
    """Return synchronisations: type, stream, correlation, start and, for events, who recorded them.

    That is the stream and the call of the last record before it, -1 where the report has none.
    """
    if not _has(database, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"):
        return pd.DataFrame({name: [] for name in _SYNCS})
    table = _select(
        database,
        "SELECT start, globalPid AS process, syncType AS type, streamId AS stream, "
        "eventId AS event, correlationId AS correlation FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    )
    table = table.apply(pd.to_numeric, errors="coerce").dropna(subset=["start", "type"]).fillna(-1)
    table = table.assign(on_stream=-1, on_call=-1).astype("int64").sort_values("start")
    if _has(database, "CUPTI_ACTIVITY_KIND_CUDA_EVENT"):
        of_event = table["type"].isin([1, 2])
        found = pd.merge_asof(
            table[of_event].drop(columns=["on_stream", "on_call"]), _records(database),
            on="start", by=["process", "event"],
        )  # fmt: skip
        table = pd.concat([table[~of_event], found.fillna(-1)], ignore_index=True)
    return pd.DataFrame(table[_SYNCS].astype("int64"))


def _records(database: sqlite3.Connection) -> pd.DataFrame:
    """Return when, on which stream and by which call each event was recorded."""
    table = _select(
        database,
        "SELECT r.start AS start, e.globalPid AS process, e.eventId AS event, "
        "e.streamId AS on_stream, e.correlationId AS on_call "
        "FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT e JOIN CUPTI_ACTIVITY_KIND_RUNTIME r "
        f"ON r.correlationId = e.correlationId AND r.globalTid & {_PROCESS} = e.globalPid",
    )
    numbers = pd.DataFrame(table.apply(pd.to_numeric, errors="coerce"))
    return numbers.dropna().astype("int64").sort_values("start")


def step_ranges(database: sqlite3.Connection) -> dict[int, list[tuple[int, int]]]:
    """Return begin and end, in nanoseconds, of NVTX ranges named after training steps."""
    if not _has(database, "NVTX_EVENTS"):
        return {}
    columns = {row[1] for row in database.execute("PRAGMA table_info(NVTX_EVENTS)")}
    text = "coalesce(text, value)" if "textId" in columns else "text"
    join = "LEFT JOIN StringIds ON id = textId" if "textId" in columns else ""
    out: dict[int, list[tuple[int, int]]] = {}
    query = f"SELECT start, end, {text} FROM NVTX_EVENTS {join} WHERE end IS NOT NULL"
    for start, end, name in database.execute(query):
        if not (_is_whole(start) and _is_whole(end) and isinstance(name, str)):
            continue
        if found := _STEP.fullmatch(name.strip()):
            out.setdefault(int(found[1]), []).append((start, end))
    return out


def _has(database: sqlite3.Connection, name: str) -> bool:
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?"
    return bool(database.execute(query, (name,)).fetchone()[0])


def _select(database: sqlite3.Connection, query: str) -> pd.DataFrame:
    """Return the rows of a query; an entry that is not of its column's type counts as empty."""
    database.text_factory = lambda text: text.decode("utf-8", "replace")
    table = pd.read_sql_query(query, database, dtype=object)
    for column in table:
        fits = _is_name if column in _NAMES else _is_id if column in _IDS else _is_whole
        right = table[column].map(fits).astype(bool)
        table.loc[~right, column] = None
        if column not in _NAMES and len(table):
            table[column] = table[column].astype("int64" if right.all() else "float64")
    return table


def _is_whole(of: object) -> bool:
    return isinstance(of, int) and abs(of) < MOST


def _is_id(of: object) -> bool:
    return isinstance(of, int)


def _is_name(of: object) -> bool:
    return isinstance(of, str) or _is_whole(of)


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    if not any(len(part) for part in parts):
        return pd.DataFrame({name: [] for name in _COLUMNS})
    some = [part if "full" in part else part.assign(full=part["name"]) for part in parts]
    table = pd.concat([part for part in some if len(part)], ignore_index=True)[_COLUMNS]
    texts = {key: table[key].fillna("unknown").astype(str) for key in ("name", "stream")}
    return table.assign(**texts, full=table["full"].fillna(texts["name"]).astype(str))
