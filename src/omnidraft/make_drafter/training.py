"""Distill a drafter from teacher text: KL to the teacher first, total variation, which is acceptance, at the end.

The teacher's distributions come over to the drafter's tokens as in online distillation, so teachers may have any
vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import build_table
from omnidraft.alignment.vocab import Speller, read_vocab
from omnidraft.distillation.batch import Batch, passes
from omnidraft.distillation.losses import TeacherDistributions, acceptance, divergence
from omnidraft.distillation.teacher import Trace, TrainingExample, exact_example
from omnidraft.make_drafter.settings import Training
from omnidraft.make_drafter.shards import TeacherConversation
from omnidraft.models.loading import has_bfloat16
from omnidraft.verification.sparse_probs import SparseProbs

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PASS = 3072  # tokens, padding included, that one forward pass reads
MAX_GRADIENT_NORM = 1.0
LONGEST = 4096  # tokens of an example; of a longer one the beginning is left out, but for a quarter of that
SHARE = np.float32(1e-4)  # of probability: likely tokens below it are left out


class Examples:
    """Turns conversations of one teacher into training examples of a drafter."""

    def __init__(
        self, drafter: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, teacher_size: int, ends: Sequence[int]
    ) -> None:
        drafter_vocab, target = read_vocab(drafter, drafts=True), read_vocab(teacher, teacher_size, ends)
        speller = Speller(drafter, drafter_vocab)
        table = build_table(drafter_vocab, target, speller, Speller(teacher, target))
        self._cache = NgramCache(table)
        self._context = DrafterContext(table, target, drafter_vocab, speller)

    def of(self, conversation: TeacherConversation) -> TrainingExample:
        """The example of a conversation; where the text is not the teacher's, what stands there is certain."""
        begun = int(conversation.written.argmax())
        tokens = conversation.ids[begun:].tolist()
        likely = iter(zip(conversation.top_ids, np.exp(conversation.top_logprobs.astype(np.float32)), strict=True))
        distributions = tuple(
            _likely(*next(likely)) if by_teacher else SparseProbs(np.array([token], np.int32), np.ones(1, np.float32))
            for token, by_teacher in zip(tokens, conversation.written[begun:].tolist(), strict=True)
        )
        written = tuple(tuple(self._context.tokens([token])) for token in tokens)
        prompt = tuple(self._context.prompt(conversation.ids[:begun].tolist()))
        room = max(LONGEST - sum(map(len, written)), LONGEST // 4)
        return exact_example(self._cache, Trace(prompt[-room:], tuple(tokens), written, distributions))


def _likely(tokens: np.ndarray, probs: np.ndarray) -> SparseProbs:
    kept = probs > SHARE
    return SparseProbs(tokens[kept], probs[kept] / probs[kept].sum())


class DrafterTrainer:
    """Trains a drafter on examples; `state` and `resume` are its checkpoint.

    Weights are fp32; products are bfloat16 where the device has it: devices without it take many times as long.
    """

    def __init__(self, model: PreTrainedModel, training: Training) -> None:
        self.model, self.training = model.train().requires_grad_(), training
        matrices = [p for name, p in model.named_parameters() if p.dim() == 2]
        others = [p for p in model.parameters() if p.dim() != 2]
        groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        self._bfloat16 = has_bfloat16(model.device)
        self._optimizer = torch.optim.AdamW(groups, lr=training.learning_rate, betas=(0.9, 0.95))
        self.tokens = 0  # read so far
        self.loss = float("nan")  # of the last step, nats a position

    @property
    def finished(self) -> bool:
        return self.tokens >= self.training.tokens

    def step(self, examples: Sequence[TrainingExample]) -> None:
        """Take one step on a batch."""
        settings = self.training
        left = 1 - self.tokens / settings.tokens
        factor = min(
            1.0, (self.tokens + settings.batch_tokens) / (20 * settings.batch_tokens), left / max(settings.decay, 1e-9)
        )
        for group in self._optimizer.param_groups:
            group["lr"] = settings.learning_rate * max(factor, 0.0)
        kind = "forward" if left > settings.decay else "forward+tv"
        total, loss = sum(example.positions for example in examples), 0.0
        self._optimizer.zero_grad()
        for one_pass in _passes(examples):
            logits, teacher = self.read(one_pass)
            share = divergence(logits, teacher, kind).sum() / total
            share.backward()
            loss += float(share.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
        self._optimizer.step()
        self.loss = loss
        self.tokens += sum(len(example.ids) for example in examples)

    @torch.no_grad()
    def evaluate(self, examples: Sequence[TrainingExample]) -> tuple[float, float]:
        """Acceptance probability of the drafter's tokens in these examples, greedy and at temperature 1."""
        rates = [acceptance(*self.read(one_pass), 1.0) for one_pass in _passes(examples)]
        greedy, sampled = torch.cat(rates).mean(0).tolist()
        return greedy, sampled

    def read(self, examples: Sequence[TrainingExample]) -> tuple[torch.Tensor, TeacherDistributions]:
        """Logits (N, V_q) at the N positions of some examples, and the teacher there."""
        device = self.model.device
        batch = Batch.of(examples, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=self._bfloat16):
            hidden = self.model.base_model(batch.ids, use_cache=False).last_hidden_state
            logits = self.model.get_output_embeddings()(hidden.flatten(0, 1)[batch.places])
        return logits.float(), batch.teacher

    def state(self) -> dict[str, Any]:
        """All that a later run needs to go on."""
        optimizer = self._optimizer.state_dict()
        return {"model": self.model.state_dict(), "optimizer": optimizer, "tokens": self.tokens, "loss": self.loss}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from an earlier state."""
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.tokens, self.loss = state["tokens"], state.get("loss", self.loss)


def _passes(examples: Sequence[TrainingExample]) -> Iterator[list[TrainingExample]]:
    """The examples in passes, those of like length one_pass."""
    return passes(sorted(examples, key=lambda each: len(each.ids)), PASS)


def batches(
    examples: Sequence[TrainingExample], tokens: int, rng: np.random.Generator
) -> Iterator[list[TrainingExample]]:
    """The examples once, in random order, in batches of about `tokens`."""
    batch: list[TrainingExample] = []
    size = 0
    for i in rng.permutation(len(examples)).tolist():
        batch.append(examples[i])
        size += len(examples[i].ids)
        if size >= tokens:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
