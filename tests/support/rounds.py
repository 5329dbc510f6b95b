"""Rounds by hand: a request begun on a lane, and its proposals verified, before the commit."""

from __future__ import annotations

from typing import Any

from omnidraft.decoding.lane import Lane
from omnidraft.decoding.passes import run
from omnidraft.decoding.request import Request
from omnidraft.decoding.round import Verified, verify


def begun(lane: Lane, *request: Any, **options: Any) -> Request:
    """A request, see `Lane.request`, that the lane has begun."""
    asked = lane.request(*request, **options)
    lane.begin(asked)
    return asked


def verified(lane: Lane, request: Request) -> Verified:
    """A round of a request but for its commit."""
    return run(verify(lane, request), request)
