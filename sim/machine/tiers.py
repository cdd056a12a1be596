"""Reading which switches are inside a node, which GPUs each joins, and where NICs are attached."""

from __future__ import annotations

from typing import Any, NamedTuple

from schedules.input_error import InputError

Table = dict[str, Any]

GPU = "gpu"
LINK = "link"  # the tier of the table [node.link]; others are named in [node.tiers]
NVLINK = "nvlink"
BRIDGE = "nvlink bridge"  # what NVLink between two GPUs passes instead of an NVSwitch
OUTER = ("nic", "leaf", "switch", "spine", "core")  # tiers outside a node
_TAKEN = (GPU, LINK, "nvswitch", *OUTER)
_TAKEN_KINDS = ("all", "nic", "ib", "fabric")


class Tier(NamedTuple):
    """One tier of switches inside a node, each joining neighbouring GPUs."""

    name: str  # as in the topology file
    switch: str  # name of its switches
    kind: str  # kind of the links below it
    gpus: int  # number of GPUs that each switch joins
    below: str  # the tier from which its links come up
    cable: Table  # its table: bandwidth in B/s, latency in s, efficiency


def inside(spec: Table) -> list[Tier]:
    """Return the tiers inside a node, in the order in which routes prefer them.

    ``spec`` is a topology as :func:`sim.machine.topology.read` returns it. Raises InputError when
    some GPUs of a node are joined by no tier, a tier would carry nothing, or a tier or the NICs
    come up from where they cannot.
    """
    node, where = spec["node"], f"topology {spec['name']!r}: node"
    tables = {LINK: {"kind": NVLINK, "from": GPU, **node[LINK]}, **node.get("tiers", {})}
    tiers: list[Tier] = []
    for name, table in tables.items():
        tier = _tier(name, table, node["gpus"])
        _check(tier, tiers, node["gpus"], f"{where}.{LINK if name == LINK else f'tiers.{name}'}")
        tiers.append(tier)
    _check_all(tiers, node, where)
    return tiers


def nic_below(spec: Table) -> str:
    """Return the tier, or "gpu", from which a NIC's links come up."""
    return str(spec["node"]["nic"].get("from", GPU))


def _tier(name: str, table: Table, gpus: int) -> Tier:
    kind = table.get("kind", name)
    switch = name if name != LINK else f"{kind} switch"
    if name == LINK and kind == NVLINK:
        switch = BRIDGE if table.get("gpus") == 2 else "nvswitch"
    return Tier(name, switch, kind, table.get("gpus", gpus), table["from"], table)


def _check(tier: Tier, before: list[Tier], gpus: int, where: str) -> None:
    """Refuse a tier that cannot come after those before it."""
    if tier.name in _TAKEN and tier.name != LINK:
        raise InputError(f"{where} has a name that the network uses itself; take another")
    if tier.kind in _TAKEN_KINDS:
        raise InputError(f"{where}.kind is {tier.kind!r}, which means other links; take another")
    if gpus % tier.gpus:
        raise InputError(f"{where}.gpus is {tier.gpus}; it must divide node.gpus = {gpus}")
    known = {one.name: one.gpus for one in before} | {GPU: 1}
    if tier.below not in known:
        there = " or ".join(map(repr, (GPU, *(one.name for one in before))))
        raise InputError(f"{where}.from is {tier.below!r}; it must be {there}, written before it")
    if tier.gpus % known[tier.below]:
        raise InputError(
            f"{where}.gpus is {tier.gpus}; it must be a multiple of the {known[tier.below]} GPUs "
            f"that {tier.below} joins"
        )


def _check_all(tiers: list[Tier], node: Table, where: str) -> None:
    """Refuse GPUs that no tier joins, and a tier over which no route would lead."""
    most = max(tier.gpus for tier in tiers)
    if most < node["gpus"]:
        raise InputError(
            f"{where} has {node['gpus']} GPUs, but the tiers inside it join at most {most}; "
            "one of them must join all"
        )
    _check_nic(tiers, node, where)
    used = {tier.below for tier in tiers} | {node["nic"].get("from", GPU)}
    for k, tier in enumerate(tiers):
        first = next((one for one in tiers[:k] if one.gpus % tier.gpus == 0), None)
        if first and tier.name not in used:
            raise InputError(
                f"{where}.tiers.{tier.name} would carry nothing: {first.name}, which comes before "
                f"it, already joins the same {tier.gpus} GPUs"
            )


def _check_nic(tiers: list[Tier], node: Table, where: str) -> None:
    """Refuse NICs that are attached nowhere, or at a switch that does not join their GPUs."""
    nic, joined = node["nic"], {tier.name: tier.gpus for tier in tiers}
    if len(tiers) > 1 and "from" not in nic:
        there = ", ".join((GPU, *joined))
        raise InputError(
            f"{where}.nic lacks 'from'; with tiers inside a node it must be one of {there}"
        )
    below = nic.get("from", GPU)
    if below not in {GPU, *joined}:
        there = ", ".join((GPU, *joined))
        raise InputError(f"{where}.nic.from is {below!r}; there are {there}")
    sharing = node["gpus"] // nic["count"]
    if below != GPU and joined[below] % max(sharing, 1):
        raise InputError(
            f"{where}.nic.from is {below}, whose switches join {joined[below]} GPUs each, but "
            f"{sharing} GPUs share a NIC; give more NICs, or a tier that joins them"
        )
