"""Parameters that `protocol` has no field for, ignored or refused: one table, which docs/serve.md shows.

What cannot change the answer is taken, and named in its `omnidraft.ignored`; what would change it is refused by name,
but for the values that say what is done anyway.  Whatever is null is taken as not given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omnidraft.server.errors import ApiError, as_json

TEXT_ALONE = "only text is supported: leave it out"


@dataclass(frozen=True)
class Rule:
    """A parameter without effect: `same` are values that ask for what is done anyway.

    Any other value is ignored, or, where there is a `fix`, refused with it.
    """

    same: tuple[Any, ...] = ()
    fix: str | None = None

    def allows(self, value: Any) -> bool:
        """True of a value that asks for what is done anyway; 1 and True are two values."""
        return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.same)


Rules = Mapping[str, Rule]
IGNORED = Rule()
STATELESS = "nothing is kept between requests: send the whole conversation"
FORMS = "grammar json_schema format guided_json guided_regex guided_choice guided_grammar structured_outputs"
OUT = "leave it out"


def _ignored(*names: str) -> Rules:
    return dict.fromkeys(names, IGNORED)


def _only(fix: str, same: Sequence[Any], names: str) -> Rules:
    """Names, apart by spaces, that are refused but for the values `same`."""
    return dict.fromkeys(names.split(), Rule(tuple(same), fix))


EVERYWHERE: Rules = {
    "store": Rule((False,)),
    "service_tier": Rule(("auto", "default")),
    "cache_prompt": Rule((True,)),
    **_ignored("prompt_cache_retention", "prompt_cache_options", "client_metadata"),
    # of proxies and of other servers: how fast an answer comes, where it is made, and where it is counted
    **_ignored("id_slot", "slot_id", "timings_per_token", "return_progress", "keep_alive", "n_keep"),
    **_ignored("priority", "request_id", "session_id", "chat_id", "t_max_prompt_ms", "litellm_metadata"),
    **_ignored("snippy", "intent", "usage", "provider", "draft_model", "ttl", "num_ctx", "backend_sampling"),
    **_ignored("thinking_budget", "thinking_budget_tokens", "cache_control"),
    **_ignored("speculative.n_max", "speculative.n_min", "speculative.p_min"),
    # which only say how a sampler is to be that is off
    **_ignored("mirostat_tau", "mirostat_eta", "dynatemp_exponent", "xtc_threshold", "penalize_nl"),
    **_ignored("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    **_only(OUT, [0], "mirostat dynatemp_range xtc_probability dry_multiplier n_probs n_indent"),
    **_only(OUT, [1], "typical_p typ_p tfs_z length_penalty"),
    **_only(OUT, [-1, 0], "top_n_sigma"),
    **_only(OUT, [0, 1], "min_keep"),
    **_only(OUT, [False], "use_beam_search early_stopping include_stop_str_in_output return_tokens"),
    **_only(OUT, [True], "skip_special_tokens spaces_between_special_tokens"),
    **_only(OUT, [[]], "stop_token_ids bad_words lora samplers allowed_token_ids"),
    **_only("give its fields as parameters of the request itself", [{}], "options"),
}
SAMPLED: Rules = {
    **_only("use response_format", [], "format"),
    **_ignored("metadata", "guided_decoding_backend", "guided_whitespace_pattern", "backend"),
}
CHAT: Rules = {
    **EVERYWHERE,
    **SAMPLED,
    "verbosity": Rule(("medium",)),
    **_ignored("prediction"),
    **_only(OUT, [True], "parse_tool_calls"),
    **_only(OUT, [False], "thinking_forced_open echo add_special_tokens"),
    **_only("use chat_template_kwargs", [], "template chat_template think"),
    **_only("only text can be generated: use ['text']", [["text"]], "modalities"),
    **_only(TEXT_ALONE, [], "audio images"),
    **_only("use tools", [[]], "functions"),
    **_only("use tool_choice", ["none"], "function_call"),
    **_only("no search is made: leave it out", [], "web_search_options"),
}
COMPLETION: Rules = {
    **EVERYWHERE,
    **SAMPLED,
    **_only("use max_tokens", [], "max_completion_tokens"),
    **_only(TEXT_ALONE, [], "images"),
    **_only(OUT, [True], "add_special_tokens"),
}
RESPONSE: Rules = {
    **EVERYWHERE,
    "truncation": Rule(("disabled",)),
    **_ignored("max_tool_calls"),
    **_only("wait for the answer, or stream it", [False], "background"),
    **_only(STATELESS, [], "previous_response_id conversation"),
    **_only("prompts are not kept here: send their text", [], "prompt"),
    **_only(OUT, [[]], "context_management"),
    **_only("use text.format", [], f"{FORMS} response_format"),
    **_only("use max_output_tokens", [], "max_tokens max_completion_tokens"),
    **_only("send a request for each answer", [1], "n best_of"),
}
MARKS: Rules = {  # of anything within a body
    "annotations": Rule(([],)),
    **_ignored("cache_control", "provider_specific_fields", "extra_content", "provider_options"),
}
STREAM: Rules = {"include_obfuscation": Rule((False,)), "continuous_usage_stats": Rule((False,))}
MESSAGE: Rules = {
    **_ignored("id", "status", "phase", "type", "index", "created", "created_at", "timestamp", "model", "weight"),
    **_ignored(
        "reasoning_details", "thinking_blocks", "metadata", "citations", "logprobs", "usage", "is_error", "parsed"
    ),
    **_only(TEXT_ALONE, [], "audio"),
    **_only(TEXT_ALONE, [[]], "images files"),
    **_only("use tool_calls", [], "function_call"),
    **_only("use continue_final_message", [False], "prefix partial"),
}
PART = _ignored("id", "index", "citations", "logprobs", "prompt_cache_breakpoint")
FORMAT = _ignored("description")
STRUCTURED = _ignored(
    "disable_any_whitespace", "disable_fallback", "disable_additional_properties", "whitespace_pattern"
)
REASONING = _ignored("summary", "generate_summary", "max_tokens", "exclude", "enabled", "context", "mode")
THINKING = _ignored("budget_tokens", "display", "clear_thinking", "block_binding")
MESSAGES: Rules = {
    **_ignored("service_tier", "context_management", "inference_geo", "cache_control", "speed", "diagnostics"),
    **_ignored("user_profile_id", "workspace_id", "billing_policy", "fallbacks", "fallback_credit_token"),
    **_only("this server runs no tools of its own: leave it out", [[]], "mcp_servers"),
    **_only(STATELESS, [], "container thread"),
}
BLOCK = _ignored("citations", "signature", "caller", "toolset_id")
OLLAMA: Rules = {
    **_ignored("keep_alive", "context", "template", "verbose", "truncate", "shift"),
    **_ignored("insecure", "username", "password"),
    **_only(TEXT_ALONE, [[]], "images"),
    **_only(OUT, [False], "_debug_render_only"),
}
LLAMA_SERVER: Rules = {
    **{name: rule for name, rule in COMPLETION.items() if name not in ("n_probs", "return_tokens", "n_indent")},
    **_ignored("n_indent", "samplers", "t_max_predict_ms", "n_discard"),
    **_only(OUT, [False], "post_sampling_probs"),
}
RULES: Mapping[str, Mapping[str, Rules]] = {  # by path, "[]" being any item of a list
    "chat": {
        "": CHAT,
        "stream_options": STREAM,
        "omnidraft": {},
        "messages[]": MESSAGE,
        "messages[].content[]": PART,
        "messages[].tool_calls[]": _ignored("index"),
        "messages[].tool_calls[].function": _ignored("parsed_arguments"),
        "tools[]": {},
        "tools[].function": {},
        "tool_choice": {},
        "tool_choice.function": {},
        "response_format": {},
        "structured_outputs": STRUCTURED,
        "tool_choice.allowed_tools": {},
        "reasoning": REASONING,
        "thinking": THINKING,
        "response_format.json_schema": FORMAT,
    },
    "completion": {
        "": COMPLETION,
        "stream_options": STREAM,
        "omnidraft": {},
        "response_format": {},
        "response_format.json_schema": FORMAT,
        "structured_outputs": STRUCTURED,
    },
    "response": {
        "": RESPONSE,
        "stream_options": STREAM,
        "omnidraft": {},
        "input[]": _ignored("id", "status", "phase", "created_by"),
        "input[].content[]": PART,
        "input[].output[]": PART,
        "tools[]": {},
        "tools[].tools[]": {},
        "tool_choice": {},
        "text": {"verbosity": Rule(("medium",))},
        "text.format": FORMAT,
        "reasoning": REASONING,
    },
    "messages": {
        "": MESSAGES,
        "omnidraft": {},
        "system[]": BLOCK,
        "messages[]": MESSAGE,
        "messages[].content[]": BLOCK,
        "messages[].content[].content[]": BLOCK,
        "tools[]": _ignored("eager_input_streaming", "defer_loading", "input_examples", "allowed_callers"),
        "tool_choice": {},
        "thinking": THINKING,
        "metadata": {},
        "output_config": _ignored("task_budget"),
    },
    "ollama": {
        "": OLLAMA,
        "omnidraft": {},
        "messages[]": MESSAGE,
        "messages[].tool_calls[]": _ignored("id", "type"),
        "messages[].tool_calls[].function": _ignored("index"),
        "tools[]": {},
        "tools[].function": {},
        "options": {},
    },
    "llama_server": {
        "": LLAMA_SERVER,
        "omnidraft": {},
        "response_format": {},
        "response_format.json_schema": FORMAT,
        "structured_outputs": STRUCTURED,
        "input_extra[]": _ignored("time"),
    },
    "tokenize": {"": {**_only(OUT, [True], "parse_special")}},
    "detokenize": {"": {}},
}


def settled(body: Mapping[str, Any], kind: str) -> tuple[dict[str, Any], list[str]]:
    """A body without nulls and without what has no effect, and the paths of what is ignored.  Raises ApiError."""
    rules, ignored = RULES[kind], []

    def of(value: Any, at: str, path: str) -> Any:
        if isinstance(value, list) and f"{at}[]" in rules:
            return [of(each, f"{at}[]", f"{path}[{place}]") for place, each in enumerate(value)]
        if not isinstance(value, dict) or at not in rules:
            return value
        kept = {}
        for key, each in value.items():
            where = f"{path}.{key}" if path else key
            rule = rules[at].get(key) or (MARKS.get(key) if at else None)
            if each is None or (rule is not None and rule.allows(each)):
                continue
            if rule is None:
                kept[key] = of(each, f"{at}.{key}" if at else key, where)
            elif rule.fix is None:
                ignored.append(where)
            else:
                raise ApiError(400, refusal(where, each, rule), param=where, code="unsupported_value")
        return kept

    found: dict[str, Any] = of(body, "", "")
    return found, ignored


def refusal(path: str, value: Any, rule: Rule) -> str:
    """Why a value is refused, with the fix."""
    if not rule.same:
        return f"{path} is not supported: {rule.fix}"
    allowed = " or ".join(map(json.dumps, rule.same))
    return f"{path} is {as_json(value)}; {allowed} is all that is supported: {rule.fix}"


def rows(kind: str) -> Iterator[tuple[str, Rule]]:
    """Each parameter of the table for a kind of body, by its path; `*` is anything within the body."""
    yield from ((f"*.{name}", rule) for name, rule in MARKS.items())
    for at, rules in RULES[kind].items():
        for name, rule in rules.items():
            yield (f"{at}.{name}" if at else name), rule
