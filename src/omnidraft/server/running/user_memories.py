"""Whose request it is, and the earlier answers of each user: in memory alone, and never across users.

Counted answers make an answer like them faster, so that shared ones would tell by time what another user was told.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, OrderedDict
from typing import NamedTuple

from omnidraft.config import Drafting
from omnidraft.counts.answer_memory import AnswerMemory

MAX_USERS = 64  # whose answers are kept for a drafter; then one of the key with most of them is forgotten, the idlest
MAX_TOKENS = 2**16  # of answers kept for each user: 2.3 MiB, 144 MiB of all
KEYLESS = -1  # the place of the key of a server without any


class User(NamedTuple):
    """A user: by the place of the API key, and by a digest of the names that the request gives; empty for none."""

    key: int = KEYLESS
    names: bytes = b""


def digest(*names: str | None) -> bytes:
    """The digest of names such as `user`, each of which tells users apart, whatever the others are; empty for none."""
    if not any(names):
        return b""
    return hashlib.sha256(json.dumps([name or None for name in names]).encode()).digest()  # of fixed size


class Memories:
    """The memories of the users of one drafter, for one thread.

    `own` is that of whoever asks without a key and a name, where the server has no keys.  Where `drafting` counts no
    earlier answers, memories hold hit rates alone; where it counts nothing, there are none.
    """

    def __init__(self, drafting: Drafting, own: AnswerMemory | None) -> None:
        self._own, self._counts = own, drafting.counts
        self._tokens = 0 if drafting.reuse_answers == "request" else MAX_TOKENS
        self._kept: OrderedDict[User, AnswerMemory] = OrderedDict()

    def of(self, user: User) -> AnswerMemory | None:
        """The memory of a user, an empty one for a new user; None where there is none."""
        if not self._counts:
            return None
        if user == User() and self._own is not None:
            return self._own
        memory = self._kept.pop(user, None) or AnswerMemory(self._tokens)
        self._kept[user] = memory
        if len(self._kept) > MAX_USERS:
            # whoever has many names forgets his own, and nobody else's
            users = Counter(each.key for each in self._kept)
            most = max(users.values())
            del self._kept[next(each for each in self._kept if users[each.key] == most)]
        return memory
