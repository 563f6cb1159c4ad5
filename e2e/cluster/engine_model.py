# mypy: disable-error-code="import-not-found,no-any-unimported,misc"
"""Makes a tiny Llama with random weights, a BPE tokenizer and a chat template.

Run by the engine's own interpreter (it needs transformers, tokenizers and
torch), never imported: `python engine_model.py FOLDER`. The same versions make
the same model.
"""

import sys
from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 2048
HIDDEN = 64
BEGIN, END, UNKNOWN = "<|begin|>", "<|end|>", "<|unknown|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}" + END + "\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE, trained on the language reference that Python ships for its help()."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END, UNKNOWN, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([topics[name] for name in sorted(topics)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        unk_token=UNKNOWN,
        pad_token=END,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Two layers of width 64. What it says is noise, but every token of it is visible text.

    Dimension 0 of the residual stream holds a constant, so the head's column 0
    acts as a bias: special tokens and fragments of UTF-8 never win (a stream of
    them would show no text at all), and the end token comes about once in two
    hundred when sampling, so an unbounded answer ends.
    """
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=2,
        # Heads of width 32, the narrowest that the engine's CPU attention takes.
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    with torch.no_grad():
        embedding.normal_(0.0, 1.0)
        embedding[:, 0] = 8.0
        head.normal_(0.0, 0.3)
        head[:, 0] = 0.0
        for token in range(VOCABULARY):
            text = tokenizer.decode([token], skip_special_tokens=True)
            if not text or "\N{REPLACEMENT CHARACTER}" in text:
                head[token, 0] = -5.0
        head[tokenizer.eos_token_id] = 0.0
        head[tokenizer.eos_token_id, 0] = 0.6
    return model


def main(folder: Path) -> None:
    """Write model and tokenizer into the folder."""
    tokenizer = make_tokenizer()
    make_model(tokenizer).to(torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
