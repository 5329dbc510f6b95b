"""What can be a prompt: text, messages in the chat template, token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import omnidraft
from omnidraft.api import OmniDraft
from omnidraft.conversation import Conversation
from omnidraft.errors import PromptError
from omnidraft.text.prompting import encode
from support.models import refused

pytestmark = pytest.mark.medium

PROMPT = "hello world"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if tone is defined %}({{ tone }})\n{% endif %}{% if add_generation_prompt %}assistant:{% endif %}"
)
USER = {"role": "user", "content": "hello"}


@pytest.fixture
def model(target: Path, drafter: Path) -> OmniDraft:
    return omnidraft.load(target, drafter, dtype="float32", profile=None, draft_length=4)


@pytest.fixture
def chatting(model: OmniDraft) -> OmniDraft:
    model.target.tokenizer.chat_template = TEMPLATE
    return model


def test_messages_are_written_in_the_template_with_one_first_token(chatting: OmniDraft) -> None:
    tokenizer = chatting.target.tokenizer
    ids = chatting.encode([USER])
    assert ids == tokenizer("user: hello\nassistant:")["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids == chatting.encode_message("hello")
    told = chatting.encode([USER], {"tone": "brief"})
    assert str(tokenizer.decode(told, skip_special_tokens=True)).endswith("(brief)\nassistant:")
    begun = chatting.encode([USER, {"role": "assistant", "content": "well"}], {"continue_final_message": True})
    assert str(tokenizer.decode(begun)).endswith("assistant: well")
    answer = chatting.generate([USER], max_new_tokens=5, template={"tone": "brief"})
    assert answer.token_ids == chatting.generate(told, max_new_tokens=5).token_ids


def test_a_text_that_writes_the_first_token_has_it_once(model: OmniDraft) -> None:
    tokenizer = model.target.tokenizer
    once = model.encode(PROMPT)
    assert once[0] == tokenizer.bos_token_id
    written = encode(tokenizer, tokenizer.bos_token + PROMPT)
    assert written.count(tokenizer.bos_token_id) == 1
    assert written == tokenizer(tokenizer.bos_token + PROMPT, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("kind", [None, "pt", "np"])
def test_what_a_tokenizer_returns_is_a_prompt(chatting: OmniDraft, kind: str | None) -> None:
    tokenizer = chatting.target.tokenizer
    ids = chatting.encode(PROMPT)
    encoding = tokenizer([PROMPT], return_tensors=kind)
    assert chatting.encode(encoding) == chatting.encode(encoding["input_ids"]) == ids
    chat: Any = tokenizer.apply_chat_template([USER], add_generation_prompt=True, return_tensors=kind, return_dict=True)
    assert chatting.encode(chat) == chatting.encode([USER])


@pytest.mark.parametrize(
    ("prompt", "template", "words"),
    [
        ([{"role": "system", "content": "x"}], None, "refuses these messages .*no system"),
        ([USER, "hello"], None, "is no message"),
        ([{"content": "x"}], None, "is no message"),
        ([{"role": "user", "content": "\ud800"}], None, "no valid Unicode"),
        ("hello", {"tone": "brief"}, "template is for messages"),
    ],
)
def test_messages_that_cannot_be_used(chatting: OmniDraft, prompt: Any, template: Any, words: str) -> None:
    with pytest.raises(PromptError, match=words) as caught:
        chatting.generate(prompt, template=template)
    assert "\n" not in str(caught.value)


DEAF = """\
{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] | trim }}
{% elif m['role'] == 'tool' and tools %}{{ m['content'] | tojson }}
{% elif m['role'] == 'assistant' %}{{ m['content'].split('</think>')[-1] }}
{% endif %}{% endfor %}"""


def test_a_message_that_a_template_leaves_out(chatting: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chatting.target.tokenizer, "chat_template", DEAF)
    system, tool = {"role": "system", "content": "Be short."}, {"role": "tool", "content": '{"a": "é"}'}
    answer = {"role": "assistant", "content": "<think>hm</think>yes"}
    for messages, place in (([system, USER], 0), ([USER, answer, tool], 2)):
        with refused(PromptError, f"leaves out message {place}, of role '{messages[place]['role']}'"):
            chatting.encode(messages)
    expected = chatting.encode([USER, answer])
    assert chatting.encode([system | {"content": " \n"}, USER, answer]) == expected
    assert chatting.encode([system | {"content": USER["content"]}, USER, answer]) == expected, "it says nothing else"
    assert len(chatting.encode([USER, answer, tool], {"tools": [{}]})) > len(expected), "in another form"


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


def test_tools_that_no_template_reads(chatting: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(PromptError, "the chat template has no place for tools"):
        chatting.generate([USER], template={"tools": TOOLS})
    expected = chatting.encode([USER])
    assert chatting.encode([USER], {"tools": None}) == chatting.encode([USER], {"tools": []}) == expected
    named = {"default": TEMPLATE, "tool_use": "{{ tools | tojson }}" + TEMPLATE, "other": TEMPLATE}
    monkeypatch.setattr(chatting.target.tokenizer, "chat_template", named)
    assert chatting.encode([USER]) == expected
    assert '"add"' in str(chatting.target.tokenizer.decode(chatting.encode([USER], {"tools": TOOLS})))
    with refused(PromptError, "the chat template has no place for tools"):
        chatting.encode([USER], {"tools": TOOLS, "chat_template": "other"})
    monkeypatch.setattr(chatting.target.tokenizer, "chat_template", "{% for m in messages %}")
    with pytest.raises(PromptError, match=r"refuses these messages \(TemplateSyntaxError"):
        chatting.encode([USER], {"tools": TOOLS})


@pytest.mark.parametrize("template", [TEMPLATE, DEAF])
def test_a_conversation_whose_system_message_has_no_place_begins_with_its_text(
    template: str, chatting: OmniDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chatting.target.tokenizer, "chat_template", template)
    system, first = {"role": "system", "content": "Be short."}, {"role": "user", "content": "Be short.\nhello"}
    with pytest.raises(PromptError):
        chatting.encode([system, USER])
    told = {"template": {"tone": "brief"}, "max_new_tokens": 4}
    talk = Conversation(chatting, "Be short.", **told)
    answer = {"role": "assistant", "content": "".join(talk.ask("hello"))}
    assert answer["content"] == chatting.generate([first], **told).text
    again = "".join(talk.ask("more"))
    assert again == chatting.generate([first, answer, USER | {"content": "more"}], **told).text
    talk.reset()
    assert "".join(talk.ask("hello")) == answer["content"]
    assert talk.messages == [system, USER, answer], "as it was asked for"


def test_a_conversation_that_no_order_of_roles_mends_is_refused_in_the_words_of_the_template(
    chatting: OmniDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = "{{ raise_exception('never ' + messages[0]['role']) }}"
    monkeypatch.setattr(chatting.target.tokenizer, "chat_template", never)
    with pytest.raises(PromptError, match="never system"):
        [*Conversation(chatting, "Be short.", max_new_tokens=4).ask("hello")]


@pytest.mark.parametrize("kind", ["text", "messages", "ids"])
def test_a_token_that_the_model_has_no_row_for(chatting: OmniDraft, kind: str) -> None:
    chatting.target.tokenizer.add_tokens(["<more>"])
    beyond = chatting.vocab.size
    prompts: dict[str, Any] = {"text": "hello <more>", "messages": [USER | {"content": "<more>"}], "ids": [5, beyond]}
    with pytest.raises(PromptError, match=f"token id {beyond} is not in 0..{beyond - 1}, the model's vocabulary"):
        chatting.generate(prompts[kind])


def test_messages_without_a_template(model: OmniDraft) -> None:
    with pytest.raises(PromptError, match="no chat template"):
        model.generate([USER])
