"""Tokens of reasoning are counted by the answer's tokens: in all APIs, whole and streamed, with and without drafts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic

from omnidraft.api import OmniDraft
from support.scripted_target import serving_script
from support.serving import PATIENT, TOOL_TEMPLATE, At, events, user, with_tools
from support.waiting import WAIT_S

pytestmark = pytest.mark.medium

THOUGHT = "Let me see: 2 + 2 🙂 is\n\n  four, a <th of it."
ANSWERS = {
    "reasons": f"<think>\n{THOUGHT}\n</think>\n\nIt is 4.",
    "reasons at once": f"<think>{THOUGHT}</think>It is 4.",
    "reasons alone": f"<think>\n{THOUGHT}\n",
    "ends like a mark": f"<think>\n{THOUGHT} </thin",
    "does not": "It is 4.",
}


@pytest.fixture(scope="module", params=[0, 16], ids=["without drafts", "with drafts"])
def thinking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[At]:
    folder = with_tools(tmp_path_factory.mktemp("thinking") / "chat")
    (folder / "chat_template.jinja").write_text(TOOL_TEMPLATE + "{# <think> </think> #}", encoding="utf-8")

    def script(prompt: str) -> str:
        return ANSWERS[prompt.rsplit("user\n", 1)[1].partition("<|im_end|>")[0]]

    with serving_script(folder, script, options={"draft_length": request.param}) as at:
        yield at


def expected(model: OmniDraft, name: str) -> int:
    """The tokens that the tokenizer places within the reasoning."""
    text = ANSWERS[name]
    tokenizer: Any = model.target.tokenizer
    thought = f"{THOUGHT} </thin" if "mark" in name else THOUGHT
    start = text.find(thought)
    if start < 0:
        return 0
    places = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return sum(begin < start + len(thought) and end > start for begin, end in places)


@pytest.mark.parametrize("name", ANSWERS)
def test_chats_count_them(thinking: At, model: OmniDraft, name: str) -> None:
    create: Any = thinking.client.chat.completions.create
    asked = {"model": "chat", "messages": user(name), "temperature": 0}
    many: list[dict[str, Any]] = [{}, {"n": 2}, {"extra_body": {"include_reasoning": False}}]
    for more in many:
        *_, last = create(**asked, **more, stream=True, stream_options={"include_usage": True})
        whole = create(**asked, **more)
        for usage in (last.usage, whole.usage):
            assert usage.completion_tokens_details.reasoning_tokens == expected(model, name) * more.get("n", 1)
            assert usage.prompt_tokens_details.cache_write_tokens == 0
        assert bool(getattr(whole.choices[0].message, "reasoning_content", "")) == (
            name != "does not" and "extra_body" not in more
        )


@pytest.mark.parametrize("name", ANSWERS)
def test_responses_count_them(thinking: At, model: OmniDraft, name: str) -> None:
    create: Any = thinking.client.responses.create
    *_, last = create(model="chat", input=name, temperature=0, stream=True)
    whole = create(model="chat", input=name, temperature=0)
    for usage in (last.response.usage, whole.usage):
        assert usage.output_tokens_details.reasoning_tokens == expected(model, name)
        assert usage.input_tokens_details.cache_write_tokens == 0


@pytest.mark.parametrize("name", ANSWERS)
def test_messages_count_them(thinking: At, model: OmniDraft, name: str) -> None:
    asked: dict[str, Any] = {"model": "chat", "max_tokens": 100, "messages": user(name)}
    with httpx2.Client(**PATIENT) as http:
        options: Any = {"base_url": thinking.url, "api_key": "none", "max_retries": 0, "timeout": WAIT_S}
        usage = Anthropic(http_client=http, **options).messages.create(**asked).usage
    assert usage.output_tokens_details is not None
    assert usage.output_tokens_details.thinking_tokens == expected(model, name)
    told = events(thinking.post("/v1/messages", asked | {"stream": True}))
    (delta,) = [each for each in told if each["type"] == "message_delta"]
    assert delta["usage"]["output_tokens_details"]["thinking_tokens"] == expected(model, name)
