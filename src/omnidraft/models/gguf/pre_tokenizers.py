"""Pre-tokenizers of GGUF files (`tokenizer.ggml.pre`), family by family.

The expressions are for the Oniguruma engine of `tokenizers`.  They split as llama.cpp does, which knows upper and lower
case of ASCII alone: any other letter passes for both.  Characters are written as escapes, as some would not survive
an editor that normalizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from omnidraft.errors import ModelError

DEFAULT, GEMMA4 = "default", "gemma4"


@dataclass(frozen=True)
class Split:
    """Rules of a pre-tokenizer."""

    steps: tuple[str, ...]  # expressions; each splits the pieces that the one before left, matches and gaps alike
    whole: bool = False  # a piece that is a token is that token, whatever the merges give
    begins: bool = False  # BOS is put in front unless the header says otherwise
    always: bool = False  # BOS is put in front whatever the header says
    byte_level: bool = True  # or characters, with ▁ for a space and byte tokens for what has none


def split_of(name: str) -> Split:
    """The splitting that `tokenizer.ggml.pre` names; raises ModelError for a name that is not known."""
    family = next((split for known, split in _FAMILIES.items() if name in known.split()), None)
    if family is None:
        raise ModelError(
            f"tokenizer.ggml.pre is {name!r}, a pre-tokenizer that is not known: use a file with one of those in "
            "docs/tokenizers.md, such as llama-bpe, qwen2, tekken or gpt-2"
        )
    return family


def names() -> list[str]:
    """All names that are known."""
    return sorted(name for known in _FAMILIES for name in known.split())


def _any(*patterns: str) -> str:
    return "|".join(patterns)


_SUFFIX = "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"  # of English contractions
_BEFORE = r"[^\r\n\p{L}\p{N}]?"  # one character that a word takes along, mostly a space
_WORD = rf"{_BEFORE}\p{{L}}+"
_MARKED = rf"{_BEFORE}[\p{{L}}\p{{M}}]+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_GAPS = r"\s+(?!\S)|\s+"
_SPACES = rf"\s*[\r\n]+|{_GAPS}"
_GPT2 = _any(r"'(?:s|t|re|ve|m|ll|d)", r" ?\p{L}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+", _GAPS)
_LLAMA3 = _any(_SUFFIX, _WORD, r"\p{N}{1,3}", _SYMBOLS, _SPACES)
_QWEN2 = _any(_SUFFIX, _WORD, r"\p{N}", _SYMBOLS, _SPACES)
_QWEN35 = _any(_SUFFIX, _MARKED, r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _SPACES)
_HALVES = _any(*(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")), r"\s")


def _cased(letters: str, suffix: str, digits: str) -> str:
    """Words whose capitals come first: `camelCase` is two."""
    capital, small = f"[{letters}&&[^a-z]]", f"[{letters}&&[^A-Z]]"
    words = f"{_BEFORE}{capital}*{small}+{suffix}", f"{_BEFORE}{capital}+{small}*{suffix}"
    return _any(*words, digits, _SLASHES, _SPACES)


_IDEOGRAPHS = "[\u4e00-\u9fa5\u3040-\u30ff]+"
_EAST_ASIAN = r"(?:(?!\s)[" + "\u0800-\u9fa5\uac00-\ud7ff])+"
_ASIAN = (
    "[\u0e40-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2f00-\u2fdf\u3040-\u30ff\u3400-\u4dbf\u4e00-\ufaff"
    "\uff65-\uff9f]+"
)
_HAN = "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ebef\U0002f800-\U0002fa1f]"
# letters with an upper and a lower case, but for those that DeepSeek's list leaves out
_BICAMERAL = (
    "[\\p{Lu}\\p{Ll}\\p{Lt}&&[^\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8f\u2d00-\u2d2f\ua790-\ua7ff\uab30-\uab6f"
    "\U00010570-\U000105ff\U00010d50-\U00010d8f\U00016e40-\U00016e7f\U0001d400-\U0001dfff]]"
)
_SIGNS = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002]"
_ASCII_SIGN = r"[!-/:-@\[-`{-~]"
_CODE = _any(rf"{_ASCII_SIGN}[A-Za-z]+", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+")
_DEEPSEEK3 = _any(_CODE, r" ?[\p{P}\p{S}]+[\r\n]*", _SPACES)
# groups of three digits, counted from the right; what stands before a number stays with its first group
_GROUPS = r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_KOREAN_AND_MORE = _any(
    "[\uac00-\ud7a3\u3131-\u318e]+",
    "[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+",
    "[\u3105-\u312f]+",
    _IDEOGRAPHS,
)
_CLAUSE = r" ?[^(\s|.,!?" + "\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_LINES = r"[^\n]+|\n+"
_PHRASE = rf"{_BEFORE}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
_FAMILIES = {
    DEFAULT: Split((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9]{3}")),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": Split(
        (_LLAMA3,), whole=True, begins=True
    ),
    "dbrx smaug-bpe chatglm-bpe": Split((_LLAMA3,)),
    "glm4 glm5": Split((_LLAMA3,), whole=True),
    "jais-2": Split((_any(_SUFFIX, _WORD, r"\p{N}{1,3}", _SYMBOLS, r"\s*[\r\n]+", _HALVES),)),
    "minicpm5": Split((r"\p{N}{1,3}", _any(_SUFFIX, _WORD, r"\p{N}+", _SYMBOLS, _SPACES)), whole=True),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": Split((_QWEN2,)),
    "laguna": Split((_LINES, _QWEN2)),
    "ufakzeka": Split((_any(_WORD, r"\p{N}", _SYMBOLS, _SPACES),)),
    "qwen35": Split((_QWEN35,)),
    "seed-coder": Split((_any(_SUFFIX, _WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", _SPACES),)),
    "bailingmoe bailingmoe2 llada-moe": Split((_any(_SUFFIX, _WORD, r"\p{N}", _SYMBOLS, r"\s*[\r\n]", _GAPS),)),
    "exaone-moe": Split((_any(_SUFFIX, _PHRASE, r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]?", r"\s*[\r\n]", _GAPS),)),
    "tekken": Split((_cased(r"\p{L}", "", r"\p{N}"),), whole=True, begins=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": Split((_cased(r"\p{L}", f"(?:{_SUFFIX})?", r"\p{N}{1,3}"),)),
    "granite-embed-multi-97m": Split((_cased(r"\p{L}\p{M}", f"(?:{_SUFFIX})?", r"\p{N}{1,3}"),), whole=True),
    "tiny_aya cohere2moe": Split((_GROUPS, _any(rf"{_MARKED}(?:{_SUFFIX})?", r"\p{N}{1,3}", _SLASHES, _SPACES))),
    "youtu": Split((_KOREAN_AND_MORE, _any(rf"{_MARKED}(?:{_SUFFIX})?", r"\p{N}", _SLASHES, _SPACES)), whole=True),
    "kimi-k2": Split(
        (
            _any(
                f"{_HAN}+",
                rf"{_BEFORE}(?:(?!{_HAN})\p{{L}})+(?:{_SUFFIX})?",
                r"\p{N}{1,3}",
                _SYMBOLS,
                _SPACES,
            ),
        )
    ),
    "deepseek-llm": Split((r"[\r\n]", rf"\s?{_BICAMERAL}+", rf"\s?{_SIGNS}+", r"\s+\z", _EAST_ASIAN, r"\p{N}+")),
    "deepseek-coder": Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, r"\p{N}")),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": Split((r"\p{N}{1,3}", _IDEOGRAPHS, _DEEPSEEK3)),
    "spark2_5": Split((r"\p{N}{1,3}", _IDEOGRAPHS, _any(_CODE, r" ?[\p{P}\p{S}]+", r"[\r\n]", _GAPS), r"\p{N}")),
    "afmoe": Split((_GROUPS, _ASIAN, _DEEPSEEK3)),
    "falcon": Split((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9]{3}")),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": Split((r"\p{N}", _GPT2)),
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en jina-v2-code "
    "roberta-bpe mpt olmo jais trillion granite-docling exaone4": Split((_GPT2,)),
    "poro-chat bloom gpt3-finnish": Split((_CLAUSE,)),
    "viking": Split((_CLAUSE, r"\p{N}")),
    "superbpe": Split((r"\p{N}+", "[0-9]{1,3}(?=(?:[0-9]{3})*(?![0-9]))")),
    "chameleon": Split(
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        begins=True,
    ),
    f"{GEMMA4} granite-embed-multi-311m": Split((_LINES,), always=True, byte_level=False),
    "sarvam-moe": Split((_LINES,), byte_level=False),
}
