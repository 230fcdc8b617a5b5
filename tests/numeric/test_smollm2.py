"""The rebuilt SmolLM2 is the real model: it answers, and the text-only family loads it as transformers does."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from chiasm.engines.embedded.families.registry import family_for


@pytest.fixture(scope="module")
def reference(smollm2_directory):
    return AutoModelForCausalLM.from_pretrained(smollm2_directory, dtype=torch.float32).eval()


def prompt(directory, question):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer, tokenizer(text, add_special_tokens=False, return_tensors="pt")


def test_it_answers(smollm2_directory, reference):
    tokenizer, inputs = prompt(smollm2_directory, "What is the capital of France? Answer in one word.")
    with torch.inference_mode():
        output = reference.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])


def test_the_tokenizer_gives_text_back(smollm2_directory):
    text = "Numbers like 2024, naïve Ünïcode, 한국어, tabs\tand\n\nlines; don't  lose   spaces."
    tokenizer = AutoTokenizer.from_pretrained(smollm2_directory)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.convert_ids_to_tokens(ids).count("2") == 2, "digits are single tokens"


def test_the_family_loads_it_as_the_reference(smollm2_directory, reference):
    model = family_for(smollm2_directory).load(torch.float32)
    _, inputs = prompt(smollm2_directory, "Name three colours.")
    with torch.inference_mode():
        hidden = model.text(inputs["input_ids"]).last_hidden_state
        ours = torch.nn.functional.linear(hidden, model.lm_head)
        theirs = reference(inputs["input_ids"]).logits
    torch.testing.assert_close(ours, theirs)
