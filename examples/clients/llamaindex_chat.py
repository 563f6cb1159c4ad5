"""LlamaIndex with a pool as its model: a chat, and an answer that is streamed.

pip install llama-index-llms-openai-like
TIDEPOOL_URL=http://127.0.0.1:8080/v1 TIDEPOOL_MODEL=llama-8b python llamaindex_chat.py
"""

import os

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


def main() -> None:
    """Print an answer, and one that comes in pieces."""
    # OpenAILike, not OpenAI: that one knows the names and the context lengths of OpenAI's own models only.
    model = OpenAILike(
        model=os.environ.get("TIDEPOOL_MODEL", "llama-8b"),
        api_base=os.environ.get("TIDEPOOL_URL", "http://127.0.0.1:8080/v1"),
        api_key=os.environ.get("TIDEPOOL_API_KEY", "none"),  # any text, where the gateway asks for no keys
        is_chat_model=True,
        context_window=8192,  # maxModelLen of the pool
        max_tokens=64,
        max_retries=0,  # the gateway has tried other pods before it answers with an error
    )
    talk = [
        ChatMessage(role="system", content="Answer in one sentence."),
        ChatMessage(role="user", content="What is a tide pool?"),
    ]
    print("whole:", model.chat(talk).message.content)

    print("streamed: ", end="")
    for piece in model.stream_chat(talk):
        print(piece.delta, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
