import io

from PIL import Image

from benchmarks import workloads


def test_the_same_seed_gives_the_same_requests_and_another_gives_others():
    assert workloads.prompts("a", 2, 900) == workloads.prompts("a", 2, 900) != workloads.prompts("b", 2, 900)
    assert workloads.mix("a", 900, 100.0) == workloads.mix("a", 900, 100.0) != workloads.mix("b", 900, 100.0)
    assert workloads.picture("a") == workloads.picture("a") != workloads.picture("b")


def test_prompts_have_the_stated_length_and_tokens():
    for prompt in workloads.prompts("a", 3, 900):
        assert len(prompt) == workloads.PROMPT_TOKENS
        assert all(10 <= token <= 900 for token in prompt)


def test_a_mix_stays_in_bounds_and_arrives_in_order():
    requests = workloads.mix("a", 900, 100.0)
    arrivals = [request["at_s"] for request in requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0.0
    assert all(16 <= len(request["token_ids"]) <= 512 for request in requests)
    assert all(4 <= request["num_tokens"] <= 256 for request in requests)
    assert len({request["num_tokens"] for request in requests}) > 10


def test_a_picture_has_the_side_asked_for():
    assert Image.open(io.BytesIO(workloads.picture("a", 448))).size == (448, 448)
