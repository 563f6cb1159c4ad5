"""A chat by OpenAI's own client: whole, streamed, and with a tool's arguments.

pip install openai
TIDEPOOL_URL=http://127.0.0.1:8080/v1 TIDEPOOL_MODEL=llama-8b python openai_sdk.py
"""

import os

from openai import OpenAI

MODEL = os.environ.get("TIDEPOOL_MODEL", "llama-8b")
# Any text is a key where the gateway asks for none. It has tried other pods before it answers with an error, so
# that the client need not ask again.
CLIENT = OpenAI(
    base_url=os.environ.get("TIDEPOOL_URL", "http://127.0.0.1:8080/v1"),
    api_key=os.environ.get("TIDEPOOL_API_KEY", "none"),
    max_retries=0,
)


def main() -> None:
    """Print the models, an answer, and one that comes in pieces."""
    print("models:", ", ".join(model.id for model in CLIENT.models.list()))

    answer = CLIENT.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is a tide pool?"}],
        max_tokens=64,
        # The same session goes where its earlier turns are cached; a batch job lets others go first.
        extra_headers={"x-tidepool-session": "example", "x-tidepool-priority": "batch"},
    )
    print("whole:", answer.choices[0].message.content)

    stream = CLIENT.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "And in a poem?"}],
        max_tokens=64,
        stream=True,
        stream_options={"include_usage": True},
    )
    print("streamed: ", end="")
    for event in stream:
        for choice in event.choices:
            print(choice.delta.content or "", end="", flush=True)
        if event.usage is not None:
            print(f"\ntokens: {event.usage.completion_tokens}")


if __name__ == "__main__":
    main()
