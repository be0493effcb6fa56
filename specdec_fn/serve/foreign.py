"""Fields of OpenAI's API that stand for services which are not offered here: accepted where they ask for nothing, refused where they do."""

from specdec_fn.serve import fields
from specdec_fn.serve.fields import Field

__all__ = ["chat", "common"]


def common() -> tuple[Field, ...]:
    """Those of completions and of chat.

    >>> [field.name for field in common()]
    ['user']
    """
    return (Field("user", fields.text(), "Who asks; it changes nothing."),)


def chat() -> tuple[Field, ...]:
    """Those of chat alone.

    >>> chat()[0].kind.read("metadata", {"a": "b"})
    {'a': 'b'}
    """
    no_tools = "none, since no tools are called here"
    return (
        Field("metadata", fields.keyed(fields.text(0, 64), fields.text(0, 512), 16, "an object of at most 16 texts"), "Changes nothing."),
        Field("store", fields.only(False, "false, since answers are not stored for later (GET /v1/requests/{id} reads the last ones)")),
        Field("service_tier", fields.choice("auto", "default", why=", since there is one tier")),
        Field("parallel_tool_calls", fields.flag(), "Changes nothing."),
        Field("prompt_cache_key", fields.text(), "Changes nothing: prefixes are cached by what they are."),
        Field("prompt_cache_retention", fields.choice("in_memory", why=", since nothing longer is promised")),
        Field("prompt_cache_options", fields.absent("none, since prefixes are cached by what they are")),
        Field("safety_identifier", fields.text(), "Changes nothing."),
        Field("reasoning_effort", fields.choice("none", why=", since the model does not reason apart")),
        Field("verbosity", fields.choice("medium", why=", since the model cannot be told")),
        Field("modalities", fields.listed(fields.choice("text", why=", since the model writes nothing else"), 1, 1, 'words, "text"')),
        Field("tools", fields.absent(no_tools)),
        Field("functions", fields.absent(no_tools)),
        Field("tool_choice", fields.choice("none", "auto", why=", since no tools are called here")),
        Field("function_call", fields.choice("none", "auto", why=", since no tools are called here")),
        Field("audio", fields.absent("none, since the model does not speak")),
        Field("prediction", fields.absent("none; drafts come from the proposer that speculation names")),
        Field("web_search_options", fields.absent("none, since nothing is searched")),
        Field("moderation", fields.absent("none, since nothing is moderated")),
    )
