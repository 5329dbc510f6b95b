"""Headers of GGUF files with tokenizers of every kind, and texts that they split differently.

`tools/record_llama_tokens.py` has llama.cpp read the files and records what it makes of the texts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPLITS = (  # one name of each way to split
    "default", "llama-bpe", "dbrx", "glm4", "jais-2", "minicpm5", "qwen2", "laguna", "ufakzeka", "qwen35",
    "seed-coder", "bailingmoe", "exaone-moe", "tekken", "gpt-4o", "granite-embed-multi-97m", "tiny_aya", "youtu",
    "kimi-k2", "deepseek-llm", "deepseek-coder", "deepseek-v3", "spark2_5", "afmoe", "falcon", "smollm", "gpt-2",
    "bloom", "viking", "superbpe", "chameleon",
)  # fmt: skip
ALIKE = {  # further names of it
    "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    "dbrx": "smaug-bpe chatglm-bpe",
    "glm4": "glm5",
    "qwen2": "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    "bailingmoe": "bailingmoe2 llada-moe",
    "gpt-4o": "llama4 kanana2 talkie minimax-m2",
    "tiny_aya": "cohere2moe",
    "deepseek-v3": "hunyuan-dense joyai-llm hy_v4",
    "smollm": "starcoder refact command-r codeshell exaone minerva-7b mellum2",
    "gpt-2": "phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en jina-v2-code "
    "roberta-bpe mpt olmo jais trillion granite-docling exaone4",
    "bloom": "poro-chat gpt3-finnish",
}
TEXTS = (
    "Hello world, it's 12345 and 1,234,567.89!",
    "I'LL they'Ve DON'T we're'S 's 'd",
    "  hello", " ", "   ", "\n", "\n\n\n", "\t\t", " \n ", "a  b   c    d", "x \n\n  y\r\n\r\n z  ",
    "def f(x):\n    if x >= 10:\n        return x**2  # done\n\n\treturn None\n",
    "for(i=0;i<100;++i){a[i]+=b/c;}//end",
    "camelCase HTTPServer XMLHttpRequest2 aBC ABc",
    "Привет, МИР приветМир! Ёлка 2024",
    "日本語のテキスト123と漢字。カタカナ、ひらがな！",
    "中文ABC混合　全角１２３，标点：（测试）",
    "한국어 텍스트 ㄱㄴㄷ 뷁 가1나2", "ภาษาไทย ๑๒๓ ทดสอบ", "हिन्दी में १२३ क्षेत्र", "العربية ١٢٣ تجربة، نص",
    "👍🏽 👨‍👩‍👧 🙂🙂🙂", "e\u0301te\u0301 a\u0300\u0301 \u0301x", "naïve café ÀÉÎ ñandú straße",
    "1 22 333 4444 55555 666666 7777777 x1 2y", "$100 + €50 = £3 ~ ^2 `code` <tag> |x|",
    "(see: http://a.b/c?d=e&f=g#h) [1] {2}", "--- === *** ... !!! ??? ,,, ///\n/\n",
    "a\u00a0b\u2003c\u3000d\u200be\u0085f", "²³½Ⅷ①٣", "Ünïcödé ﬁ Ǆ ƻ ʰ ℵ ℝ ꙮ", "ⅰ ℃ № ™ ∑ ∞ ≠",
    "a'b 'tis o'clock ''s \"q\"",
    "<sentinel:12> IMGIMGABCDZ IMGIMGA", "word.Word,word;Word word(s) end।", "x" * 40 + " " * 20 + "1" * 11,
    "'sound I'vex a'tb 'REx", " \u0301 !\u0301\u0301 a1\u0301", "end.\r\nNext!\n\n\nok?\n \n",
    "a\u200b  ", "a b ab  12 ab\u4e2d's x's\u4e2d",
)  # fmt: skip
MARKERS = ("<unk>", "<s>", "</s>")
BYTES = {f"<0x{byte:02X}>": BYTE for byte in range(256)}
MARKED = (  # texts with special tokens, for tokenizers that have them
    "<s>hello</s>", "</s>  hello <s> x", "<s> <s>", "say <think> now</think>", "<|im_start|>user\n hi<|im_end|>\n",
    "a<|im_end|>  b <|end|>\n c", "<0x41> <unk> [unused]", "", "hello",
)  # fmt: skip


PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PLAIN]
ALIASES = dict(zip(PLAIN, map(chr, PLAIN), strict=True)) | {byte: chr(0x100 + i) for i, byte in enumerate(OTHERS)}


def alias(data: bytes) -> str:
    """The characters that stand for bytes in byte-level tokenizers."""
    return "".join(map(ALIASES.__getitem__, data))


@cache
def _merged(words: tuple[str, ...], longest: int, base: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Tokens and merges that write all that words have in them, up to a length, across whatever a split may set."""
    tokens, merges = dict.fromkeys(base), dict[str, None]()
    for length in range(2, longest + 1):
        for word in words:
            for at in range(len(word) - length + 1):
                piece = word[at : at + length]
                if piece[:-1] in tokens:
                    merges[f"{piece[:-1]} {piece[-1]}"] = None
                    tokens[piece] = None
    return list(tokens), list(merges)


def byte_level(pre: str | None, more: Mapping[str, int] | None = None, **keys: Any) -> dict[str, Any]:
    """A header of the kind gpt2; `more` are tokens with their kinds."""
    words = tuple(alias(text.encode()) for text in TEXTS)
    tokens, merges = _merged(words, 4, tuple(alias(bytes([byte])) for byte in range(256)))
    return _header("gpt2", more or {}, tokens, {"pre": pre, "merges": merges} | keys)


def characters(model: str, more: Mapping[str, int] | None = None, **keys: Any) -> dict[str, Any]:
    """A header of Gemma 4's kind: merges between characters, and byte tokens."""
    words = tuple(text.replace(" ", "▁") for text in TEXTS if text.isascii())
    letters = dict.fromkeys("".join(words))
    tokens, merges = _merged(words, 4, (*letters, "\n\n\n", "日"))
    return _header(model, {**(more or {}), **BYTES}, tokens, {"merges": merges} | keys)


def sentencepiece(more: Mapping[str, int] | None = None, **keys: Any) -> dict[str, Any]:
    """A header of the kind llama: scores, byte tokens, and runs of spaces that share a score."""
    words = [text.replace(" ", "▁") for text in TEXTS if text.isascii()]
    words += ["▁hello", "▁▁hello", "▁user", "▁the", "▁été"]
    pieces, _ = _merged(tuple(words), 3, tuple(dict.fromkeys("".join(words))))
    special = {"<unk>": UNKNOWN, **(more or {}), **BYTES}
    runs = ["▁" * count for count in range(2, 9)]
    pieces = [piece for piece in pieces if piece not in (*runs, *MARKERS, *special)]
    random.Random(0).shuffle(pieces)
    scores = [0.0] * len({*MARKERS, *special}) + [-1e9] * len(runs) + [-float(place) for place in range(len(pieces))]
    return _header("llama", special, [*runs, *pieces], {"scores": scores} | keys)


def _header(kind: str, special: Mapping[str, int], ordinary: list[str], keys: dict[str, Any]) -> dict[str, Any]:
    kinds = dict.fromkeys(MARKERS, CONTROL) | dict(special)
    tokens = [*kinds, *ordinary]
    own: dict[str, Any] = {
        "model": kind,
        "tokens": tokens,
        "token_type": [kinds.get(token, NORMAL) for token in tokens],
    }
    own |= {"bos_token_id": 1, "eos_token_id": 2} | keys
    name = own.pop("name", "Small")
    given = {f"tokenizer.ggml.{key}": value for key, value in own.items() if value is not None}
    return {"general.architecture": "llama", "general.name": name, "llama.context_length": 4096} | given


CHAT = {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<think>": USER_DEFINED, "</think>": USER_DEFINED}
CHAT |= {"<|end|>": CONTROL, "[unused]": UNUSED}


@cache
def cases() -> dict[str, dict[str, Any]]:
    """Headers by name, apart from those of the splits."""
    return {
        "no pre": byte_level(None),
        "chat": byte_level("qwen2", CHAT),
        "llama-bpe without add_bos_token": byte_level("llama-bpe", CHAT),
        "tekken without add_bos_token": byte_level("tekken", CHAT),
        "llama-bpe with add_bos_token false": byte_level("llama-bpe", add_bos_token=False),
        "bos and eos": byte_level("gpt-2", add_bos_token=True, add_eos_token=True),
        "sentencepiece": sentencepiece(CHAT),
        "no space prefix": sentencepiece(CHAT, add_space_prefix=False),
        "no bos": sentencepiece(add_bos_token=False),
        "ids by default": sentencepiece(bos_token_id=None, eos_token_id=None, add_eos_token=True),
        "without harm": sentencepiece(CHAT, remove_extra_whitespaces=True, pre="llama-bpe", add_sep_token=True),
        "spaces of the user": sentencepiece({"  ": USER_DEFINED, "    ": USER_DEFINED, "\n\n": USER_DEFINED}),
        "phi-3": sentencepiece(CHAT | {"<|endoftext|>": CONTROL}, name="Phi-3 mini"),
        "gemma4": characters("gemma4", CHAT, add_bos_token=False),
        "sarvam-moe": characters("gpt2", CHAT, pre="sarvam-moe"),
    }


def ends() -> dict[str, dict[str, Any]]:
    """Headers by name, of which the tokens that end an answer are of interest."""
    made = {
        "eos alone": ({}, {}),
        "im_end, user-defined": ({"<|im_end|>": USER_DEFINED}, {}),
        "im_end, normal": ({"<|im_end|>": NORMAL}, {}),
        "eot and eom by key": ({"a turn": CONTROL, "a call": CONTROL}, {"eot_token_id": 3, "eom_token_id": 4}),
        "eot by key and others by text": ({"<|eot_id|>": CONTROL, "<|eom_id|>": CONTROL}, {"eot_token_id": 1}),
        "ids that no token has": ({}, {"eos_token_id": 2**32 - 1, "bos_token_id": 2**32 - 1, "eot_token_id": 99999}),
        "harmony": (dict.fromkeys(("<|return|>", "<|call|>", "<|end|>", "<|start|>", "<|channel|>"), CONTROL), {}),
        "solar": (dict.fromkeys(("<|flush|>", "<|calls|>", "<|end|>"), CONTROL), {}),
        "return without call": (dict.fromkeys(("<|return|>", "<|end|>"), CONTROL), {}),
        "gemma4": (dict.fromkeys(("<|tool_response>", "<turn|>", "<eos>"), CONTROL), {}),
        "code": (dict.fromkeys(("<|fim_prefix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"), CONTROL), {}),
        "code by key": ({"<fill>": CONTROL, "<|fim_pad|>": CONTROL}, {"fim_pad_token_id": 3}),
        "deepseek": ({"<｜end▁of▁sentence｜>": NORMAL, "<EOT>": CONTROL, "<｜User｜>": CONTROL}, {}),
        "others": (
            dict.fromkeys(("_<EOT>", "[EOT]", "[EOS]", "[e~[", "<end_of_utterance>", "<end_of_turn>"), CONTROL),
            {},
        ),
        "no ends": (dict.fromkeys(("<|user|>", "<|start|>", "<|endofprompt|>", "im_end", "<|im_end|> "), CONTROL), {}),
    }
    made |= {"old ones": (dict.fromkeys(("<|endoftext|>", "<|end_of_text|>", "<|end|>"), CONTROL), {})}
    return {name: byte_level("gpt-2", more, **keys) for name, (more, keys) in made.items()}


def write_header(path: Path, metadata: Mapping[str, Any]) -> Path:
    """A GGUF file of a header alone."""
    import gguf

    from support.gguf_models import add_key

    out = gguf.GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        if key != "general.architecture":
            add_key(out, key, value)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.close()
    return path
