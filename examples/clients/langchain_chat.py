"""A chain of LangChain whose model is a pool: asked once, streamed, and as a batch.

pip install langchain-openai
TIDEPOOL_URL=http://127.0.0.1:8080/v1 TIDEPOOL_MODEL=llama-8b python langchain_chat.py
"""

import os

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import SecretStr


def main() -> None:
    """Print an answer, one that comes in pieces, and three of a batch."""
    model = ChatOpenAI(
        base_url=os.environ.get("TIDEPOOL_URL", "http://127.0.0.1:8080/v1"),
        # Where the gateway asks for no keys, any text is one.
        api_key=SecretStr(os.environ.get("TIDEPOOL_API_KEY", "none")),
        model=os.environ.get("TIDEPOOL_MODEL", "llama-8b"),
        max_completion_tokens=64,
        max_retries=0,  # the gateway has tried other pods before it answers with an error
    )
    prompt = ChatPromptTemplate.from_messages([("system", "Answer in one sentence."), ("user", "{question}")])
    chain = prompt | model | StrOutputParser()

    print("whole:", chain.invoke({"question": "What is a tide pool?"}))

    print("streamed: ", end="")
    for piece in chain.stream({"question": "And in a poem?"}):
        print(piece, end="", flush=True)
    print()

    # Three at once: the gateway spreads them over the pool.
    questions = [{"question": f"Name an animal that lives there, number {number}."} for number in range(3)]
    for answer in chain.batch(questions):
        print("of a batch:", answer)


if __name__ == "__main__":
    main()
