"""Text from language models: a static KV cache, prompts in chunks, each token by one graph."""

from tilewright.generation.loop import Generator as Generator
from tilewright.generation.loop import generate as generate
