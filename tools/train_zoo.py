"""Train the embedded models (the zoo): their tokenizers, a drafter and two targets, from plain text.

    python tools/train_zoo.py tokenizer drafter  --gsm8k DIR --mbpp DIR --out OUT
    python tools/train_zoo.py train     drafter  --gsm8k DIR --mbpp DIR --out OUT
    python tools/train_zoo.py export    drafter  --gsm8k DIR --mbpp DIR --out OUT --into PLAIN

`--gsm8k` holds train.jsonl and test.jsonl, `--mbpp` holds mbpp.jsonl; `--code` is a folder of Python
files (default: the standard library of the running interpreter, tests left out).  `train` writes a checkpoint
every two hundred steps and goes on from the last one; batches depend on the seed and the step alone, so an
interrupted run ends with the same weights.  `export` writes the bf16 weights and measures the held-out losses,
`record` measures them anew for the weights that are there, such as those of `tools/pack_weights.py`.
No test file is ever trained on, and the last 1,000 lines of GSM8K's train.jsonl are kept out as well.
"""

from __future__ import annotations

import argparse
import json
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from omnidraft.models.loading import load_model

KEPT_OUT = 1_000  # last lines of GSM8K train.jsonl: the stream of user prompts for online learning
MBPP_TRAIN = range(601, 975)  # MBPP's own training split; 11-510 are its test tasks
ROW = 512  # tokens a training row
PADDED = 32  # rows of the chat target's logits that no token has, as in models whose vocabulary is rounded up
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Recipe:
    """How one zoo model is made: shape, share of each kind of text, and training length."""

    tokenizer: str  # "sentencepiece", "bytelevel" or "chat"; "drafter": that of the zoo's drafter
    vocab: int
    layers: int
    hidden: int
    intermediate: int
    mix: dict[str, float]
    tokens: int
    rows: int = 4  # rows of ROW tokens a step
    lr: float = 2e-3
    warmup: int = 200
    seed: int = 0
    kv_heads: int = 4  # of 4 with hidden size 256
    optimizer: str = "muon"  # at equal time ahead of AdamW here: 4.43 against 4.67 after five minutes


RECIPES = {
    "drafter": Recipe("sentencepiece", 4096, 2, 256, 640, {"code": 0.9, "gsm8k": 0.1}, tokens=16_000_000),
    "target-a": Recipe("bytelevel", 8192, 16, 256, 640, {"gsm8k": 0.74, "mbpp": 0.08, "code": 0.18}, tokens=6_300_000),
    "target-b": Recipe(
        "chat", 6144, 16, 256, 640, {"gsm8k": 0.74, "mbpp": 0.08, "code": 0.18}, tokens=5_000_000, kv_heads=2
    ),
    # for comparisons with one vocabulary; not shipped
    "target-c": Recipe("drafter", 4096, 8, 256, 640, {"gsm8k": 0.74, "mbpp": 0.08, "code": 0.18}, tokens=2_200_000),
}


# ---------------------------------------------------------------- text


@dataclass(frozen=True)
class Document:
    """A prompt and its answer, or a plain text with an empty prompt."""

    prompt: str
    answer: str

    @property
    def text(self) -> str:
        return self.prompt + self.answer


def gsm8k_document(row: dict[str, str]) -> Document:
    return Document(f"Question: {row['question']}\nAnswer:", f" {row['answer']}")


def mbpp_document(row: dict[str, Any]) -> Document:
    code = row["code"].replace("\r\n", "\n").replace("\t", "    ")
    return Document(f"Task: {row['text']}\n{row['test_list'][0]}\nSolution:\n", code)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def code_chunks(folder: Path, characters: int = 1_500) -> list[Document]:
    """Python files below `folder`, cut at line ends into pieces of about `characters`."""
    chunks = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        if {"test", "tests", "idle_test", "site-packages", "idlelib", "encodings"} & set(parts):
            continue
        piece: list[str] = []
        size = 0
        for line in path.read_text(encoding="utf-8", errors="ignore").splitlines(keepends=True):
            piece.append(line)
            size += len(line)
            if size >= characters:
                chunks.append(Document("", "".join(piece)))
                piece, size = [], 0
    return chunks


def corpora(gsm8k: Path, mbpp: Path, code: Path) -> dict[str, list[Document]]:
    """Training documents by kind, and under `held-out` GSM8K questions that no zoo model sees."""
    train = read_jsonl(gsm8k / "train.jsonl")
    return {
        "gsm8k": [gsm8k_document(r) for r in train[:-KEPT_OUT]],
        "mbpp": [mbpp_document(r) for r in read_jsonl(mbpp / "mbpp.jsonl") if r["task_id"] in MBPP_TRAIN],
        "code": code_chunks(code),
        "held-out": [gsm8k_document(r) for r in train[-KEPT_OUT:]],
    }


# ---------------------------------------------------------------- tokenizers


def sentencepiece_style(texts: dict[str, list[Document]], recipe: Recipe) -> PreTrainedTokenizerFast:
    """A BPE over `▁`-marked words with byte fallback; every digit and every line end stands alone."""
    words = r"▁*[\p{L}_]+|\p{N}|▁+(?=▁[^▁])|▁?[^\s▁\p{L}\p{N}]+|▁+"
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(words), "isolated")
    special = ["<unk>", "<s>", "</s>"]
    fallback = [f"<0x{i:02X}>" for i in range(256)]
    share = {k: max(1, round(20 * v)) for k, v in recipe.mix.items()}
    chosen = (document.text for kind, n in share.items() for document in texts[kind][:: max(1, 20 // n)])
    lines = (line for text in chosen for line in text.split("\n"))
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocab - len(fallback), special_tokens=special, limit_alphabet=100, show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    spec = json.loads(tokenizer.to_str())  # the byte tokens must sit in the model, not among the added tokens
    learned = sorted(spec["model"]["vocab"], key=spec["model"]["vocab"].__getitem__)[len(special) :]
    spec["model"]["vocab"] = {token: i for i, token in enumerate(special + fallback + learned)}
    spec["decoder"] = json.loads(
        decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ).__getstate__()
    )
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def byte_level(texts: dict[str, list[Document]], recipe: Recipe) -> PreTrainedTokenizerFast:
    """A byte-level BPE: numbers in groups of up to three digits, or, with a chat template, as single digits."""
    chat = recipe.tokenizer == "chat"
    tokenizer = Tokenizer(models.BPE())
    digits = r"\p{N}" if chat else r"\p{N}{1,3}"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT.replace("DIGITS", digits)), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] if chat else ["<|begin_of_text|>", "<|end_of_text|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocab - len(special) - (PADDED if chat else 0),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.text for kind in ("gsm8k", "mbpp", "code") for d in texts[kind]), trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    if chat:
        tokenizer.normalizer = normalizers.NFC()
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token=special[0], eos_token=special[2], chat_template=CHAT
        )
    bos = tokenizer.token_to_id(special[0])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{special[0]} $A", special_tokens=[(special[0], bos)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[1])


# ---------------------------------------------------------------- training


def prompt_ids(tokenizer: PreTrainedTokenizerFast, document: Document) -> list[int]:
    """What comes before the answer; a chat where the tokenizer has a template."""
    if tokenizer.chat_template is None or not document.prompt:
        return list(tokenizer(document.prompt)["input_ids"])
    message = {"role": "user", "content": document.prompt}
    return list(tokenizer.apply_chat_template([message], add_generation_prompt=True, return_dict=False))


def encode_one(tokenizer: PreTrainedTokenizerFast, document: Document) -> list[int]:
    """The whole document with its end token."""
    if tokenizer.chat_template is None:
        return [*tokenizer(document.text)["input_ids"], tokenizer.eos_token_id]
    end = tokenizer.eos_token_id if document.prompt else tokenizer.pad_token_id  # end of a turn, or of a text
    answer = tokenizer(document.answer.lstrip(" ") if document.prompt else document.answer)["input_ids"]
    return [*prompt_ids(tokenizer, document), *answer, end]


def encode(tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> list[npt.NDArray[np.int32]]:
    return [np.array(encode_one(tokenizer, document), np.int32) for document in documents]


def batch(documents: dict[str, list[npt.NDArray[np.int32]]], recipe: Recipe, step: int) -> torch.Tensor:
    """Rows of whole documents, each row from a document's start: (rows, ROW + 1), a function of seed and step."""
    rng = np.random.default_rng((recipe.seed, step))
    kinds, weights = list(recipe.mix), np.array(list(recipe.mix.values()))
    rows = []
    for _ in range(recipe.rows):
        kind = kinds[rng.choice(len(kinds), p=weights / weights.sum())]
        parts: list[npt.NDArray[np.int32]] = []
        while sum(map(len, parts)) <= ROW:
            parts.append(documents[kind][rng.integers(len(documents[kind]))])
        rows.append(np.concatenate(parts)[: ROW + 1])
    return torch.from_numpy(np.stack(rows)).long()


def answer_loss(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> float:
    """Mean negative log-likelihood per answer token (end token included), in nats, given the question."""
    total, count = 0.0, 0
    for document in documents:
        ids = torch.tensor([encode_one(tokenizer, document)])
        start = len(prompt_ids(tokenizer, document))
        with torch.no_grad():
            logits = model(input_ids=ids[:, :-1]).logits.float()
        losses = torch.nn.functional.cross_entropy(logits[0, start - 1 :], ids[0, start:], reduction="sum")
        total, count = total + float(losses), count + ids.shape[1] - start
    return total / count


def build(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    torch.manual_seed(recipe.seed)
    chat = recipe.tokenizer == "chat"
    shape: dict[str, Any] = {
        "vocab_size": recipe.vocab,
        "hidden_size": recipe.hidden,
        "intermediate_size": recipe.intermediate,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.hidden // 64,
        "num_key_value_heads": recipe.kv_heads,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": [tokenizer.eos_token_id, tokenizer.pad_token_id] if chat else tokenizer.eos_token_id,
    }
    return Qwen2ForCausalLM(Qwen2Config(**shape)) if chat else LlamaForCausalLM(LlamaConfig(**shape))


def optimizers(model: torch.nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    hidden = [p for n, p in named if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    rest = [p for n, p in named if not any(p is h for h in hidden)]
    adamw = {"lr": recipe.lr, "betas": (0.9, 0.95), "weight_decay": 0.05, "fused": True}
    if recipe.optimizer == "adamw":
        return [torch.optim.AdamW([p for _, p in named], **adamw)]  # type: ignore[arg-type]
    return [
        torch.optim.Muon(hidden, lr=recipe.lr * 4, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, **adamw),  # type: ignore[arg-type]
    ]


def schedule(recipe: Recipe, step: int, steps: int) -> float:
    """Linear warm-up, then linear decay to nothing."""
    return min((step + 1) / recipe.warmup, max(0.0, (steps - step) / max(1, steps - recipe.warmup)))


def train(name: str, recipe: Recipe, texts: dict[str, list[Document]], out: Path, compiled: bool) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out / name)
    documents = {kind: encode(tokenizer, texts[kind]) for kind in recipe.mix}
    print({kind: f"{sum(map(len, d)):,} tokens" for kind, d in documents.items()}, file=sys.stderr)
    model = build(recipe, tokenizer)
    opts = optimizers(model, recipe)
    per_step = recipe.rows * ROW
    steps, first = recipe.tokens // per_step, 0
    checkpoint = out / name / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        for opt, saved in zip(opts, state["optimizers"], strict=True):
            opt.load_state_dict(saved)
        first = state["step"]

    def loss_of(ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    step_loss = torch.compile(loss_of) if compiled else loss_of
    began, running = time.time(), 0.0
    for step in range(first, steps):
        rate = schedule(recipe, step, steps)
        loss = step_loss(batch(documents, recipe, step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            for group in opt.param_groups:
                group["lr"] = group.setdefault("base_lr", group["lr"]) * rate
            opt.step()
            opt.zero_grad(set_to_none=True)
        running += float(loss)
        if (step + 1) % 50 == 0:
            speed = (step - first + 1) * per_step / (time.time() - began)
            left = (steps - step - 1) * per_step / speed / 60
            print(
                f"{name} step {step + 1}/{steps} loss {running / 50:.3f} {speed:.0f} tokens/s, {left:.0f} min left",
                flush=True,
            )
            running = 0.0
        if (step + 1) % 200 == 0 or step + 1 == steps:
            state = {
                "model": model.state_dict(),
                "optimizers": [opt.state_dict() for opt in opts],
                "step": step + 1,
            }
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
        if (step + 1) % 1000 == 0 or step + 1 == steps:
            model.eval()
            print(f"{name} held-out loss {answer_loss(model, tokenizer, texts['held-out'][:64]):.3f}", flush=True)
            model.train()


def ends(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> float:
    """Share of greedy answers that end by themselves within 256 tokens."""
    done = 0
    for document in documents:
        ids = torch.tensor([prompt_ids(tokenizer, document)])
        out = model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=256,
            do_sample=False,
            pad_token_id=tokenizer.eos_token_id,
        )
        done += int(out[0, -1] in (tokenizer.eos_token_id, tokenizer.pad_token_id))
    return done / len(documents)


def export(name: str, recipe: Recipe, gsm8k: Path, out: Path, into: Path) -> None:
    """Write bf16 weights, tokenizer and a record of losses into `into/name`."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out / name)
    model = build(recipe, tokenizer)
    state = torch.load(out / name / "checkpoint.pt", weights_only=True)
    model.load_state_dict(state["model"])
    model = model.to(torch.bfloat16).eval()  # type: ignore[arg-type]
    model.save_pretrained(into / name)
    tokenizer.save_pretrained(into / name)
    write_record(into / name, state["step"] * recipe.rows * ROW, recipe, gsm8k)


def write_record(folder: Path, tokens: int, recipe: Recipe, gsm8k: Path) -> None:
    """Write the losses of a model after so many tokens of training; they are those of the rounded weights."""
    model = load_model(folder, "float32", "cpu").lm.model
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    test = [gsm8k_document(row) for row in read_jsonl(gsm8k / "test.jsonl")[:200]]
    record = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": tokens,
        "loss_gsm8k_test_answers": round(answer_loss(model, tokenizer, test), 4),
        "greedy_answers_that_end": ends(model, tokenizer, test[:60]),
        "mix": recipe.mix,
    }
    print(json.dumps(record))
    (folder / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tokenizer", "train", "export", "record"])
    parser.add_argument("name", choices=list(RECIPES))
    parser.add_argument("--gsm8k", type=Path, required=True)
    parser.add_argument("--mbpp", type=Path, required=True)
    parser.add_argument("--code", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--into", type=Path, default=Path("src/omnidraft/zoo/models"))
    parser.add_argument("--tokens", type=int, help="instead of the recipe's number")
    parser.add_argument("--optimizer", choices=["adamw", "muon"])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="torch.compile the loss: 1.2-1.3x on a CPU")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    changes = {k: v for k in ("tokens", "optimizer", "rows", "lr") if (v := getattr(args, k)) is not None}
    recipe = Recipe(**{**RECIPES[args.name].__dict__, **changes})
    if args.what == "export":
        export(args.name, recipe, args.gsm8k, args.out, args.into)
        return
    if args.what == "record":
        tokens = json.loads((args.into / args.name / "training.json").read_text())["tokens"]
        write_record(args.into / args.name, tokens, recipe, args.gsm8k)
        return
    texts = corpora(args.gsm8k, args.mbpp, args.code)
    print(
        {k: f"{len(t):,} documents, {sum(len(d.text) for d in t):,} characters" for k, t in texts.items()},
        file=sys.stderr,
    )
    if args.what == "tokenizer":
        if recipe.tokenizer == "drafter":
            PreTrainedTokenizerFast.from_pretrained(args.into / "drafter").save_pretrained(args.out / args.name)
            return
        make = sentencepiece_style if recipe.tokenizer == "sentencepiece" else byte_level
        make(texts, recipe).save_pretrained(args.out / args.name)
        return
    train(args.name, recipe, texts, args.out, args.compile)


if __name__ == "__main__":
    main()
