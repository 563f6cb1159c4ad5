"""LoRA adapters for the tiny model that e2e/cluster/engine_model.py makes, without any library that trains one."""

import json
import math
import random
import struct
from pathlib import Path

WIDTH, LAYERS = 64, 2  # of that model


def lora(folder: Path, rank: int = 8, seed: int = 1) -> Path:
    """An adapter of all queries, with weights that change what the model says; safetensors written by hand
    (github.com/huggingface/safetensors, "Format")."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 4 * rank, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    noise, header, data = random.Random(seed), {}, b""
    for layer in range(LAYERS):
        for part, shape in (("lora_A", (rank, WIDTH)), ("lora_B", (WIDTH, rank))):
            count = math.prod(shape)
            content = struct.pack(f"<{count}f", *(noise.gauss(0.0, 2.0) for _ in range(count)))
            name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.{part}.weight"
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (len(data), len(data) + len(content))}
            data += content
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder
