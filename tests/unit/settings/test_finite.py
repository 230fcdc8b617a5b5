"""Infinite numbers, and what is none, come from no file and no option."""

import msgspec
import pytest

from chiasm.bench.grid.spec import read_grid
from chiasm.bench.workload.classes import read_mix
from chiasm.errors import InvalidSettingError
from chiasm.settings import resolve
from chiasm.settings.finite import decode_toml, non_finite


@pytest.mark.parametrize("value", [1.0, -1e300, 3, "inf", b"nan", None, True, [1.0, {"a": (2.0, "x")}], {}])
def test_finite_ones_are_no_problem(value):
    assert non_finite(value) is None


def test_the_first_one_is_named_by_its_place():
    assert non_finite({"a": [1.0, {"b": float("inf")}]}) == "a.1.b is inf, which is no finite number"
    assert non_finite(float("nan")) == "the number is nan, which is no finite number"


def test_toml_with_one_is_no_document_of_its_kind():
    with pytest.raises(msgspec.ValidationError, match=r"a\.0 is -inf"):
        decode_toml(b"a = [-inf]", dict[str, list[float]])
    assert decode_toml(b"a = [1.5]", dict[str, list[float]]) == {"a": [1.5]}


@pytest.mark.parametrize("number", ["inf", "-inf", "nan"])
@pytest.mark.parametrize("name", ["gateway.request_timeout_s", "pooling.logit_mean"])
def test_settings_refuse_them_from_every_source(tmp_path, name, number):
    section, field = name.split(".")
    file = tmp_path / "s.toml"
    file.write_text(f"[{section}]\n{field} = {number}\n")
    variable = {f"CHIASM_{section}__{field}".upper(): number}
    sources = [{"overrides": [f"{name}={number}"]}, {"file": file}, {"environment": variable}]
    sources.append({"values": {name: float(number)}})
    for source in sources:
        with pytest.raises(InvalidSettingError, match=rf"{name} is -?(inf|nan), which is no finite number"):
            resolve(**({"environment": {}} | source))


GRID = 'baseline = "a"\nloads = [0.5]\nseconds = inf\n[[topology]]\nname = "a"\nurl = "http://127.0.0.1:9"\n'


@pytest.mark.parametrize(
    ("read", "text", "place"),
    [
        (read_grid, GRID, "seconds"),
        (read_mix, '[[class]]\nname = "a"\nweight = inf\n', "class.0.weight"),
    ],
)
def test_files_of_loads_refuse_them(tmp_path, read, text, place):
    file = tmp_path / "file.toml"
    file.write_text(text)
    with pytest.raises(InvalidSettingError, match=f"{place} is inf"):
        read(file)
    file.write_text(text.replace("inf", "2"))
    assert read(file)
