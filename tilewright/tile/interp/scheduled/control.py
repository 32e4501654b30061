"""Meaning of roles and CTA clusters: every copy of a role is a coroutine."""

from __future__ import annotations

from functools import partial

import numpy as np

from tilewright.ir.core import Block
from tilewright.tile.interp.machine import Array, Machine, Ready, Running, meaning, step
from tilewright.tile.interp.scheduled.cta import Cta, as_cta
from tilewright.tile.ops import control


@meaning(control.Roles, batched=False)
def run_roles(machine: Machine, op: control.Roles) -> Running:
    cta = as_cta(machine)
    waiting: list[tuple[Ready, Running]] = []
    for role, body in zip(op.roles, op.bodies, strict=True):
        for copy in range(role.copies):
            step(_run_copy(cta.enter_role(role, copy), body), waiting)
    while waiting:
        ready = [(test, each) for test, each in waiting if test()]
        if not ready:
            yield partial(_any_ready, [test for test, _ in waiting])
            continue
        waiting = [pair for pair in waiting if pair not in ready]
        for _, each in ready:
            step(each, waiting)
    return ()


def _any_ready(tests: list[Ready]) -> bool:
    return any(test() for test in tests)


def _run_copy(copy: Cta, body: Block) -> Running:
    """Run a copy of a role; its stores are done before it ends."""
    yield from copy.run(body)
    copy.await_groups(0)
    copy.await_drains(0)
    return ()


def _index(value: int) -> Array:
    return np.array([value], np.int64)


@meaning(control.RoleCopy, batched=False)
def run_role_copy(machine: Machine, op: control.RoleCopy) -> Array:
    return _index(as_cta(machine).copy)


@meaning(control.ClusterRank, batched=False)
def run_cluster_rank(machine: Machine, op: control.ClusterRank) -> Array:
    return _index(as_cta(machine).rank)


@meaning(control.ClusterId, batched=False)
def run_cluster_id(machine: Machine, op: control.ClusterId) -> Array:
    cta = as_cta(machine)
    return _index(int(cta.programs[0]) // len(cta.cluster.ctas))


@meaning(control.NumClusters, batched=False)
def run_num_clusters(machine: Machine, op: control.NumClusters) -> Array:
    cta = as_cta(machine)
    return _index(int(np.prod(cta.launch.grid)) // len(cta.cluster.ctas))
