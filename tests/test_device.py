"""Device cards: the shipped figures, and what a faulty card is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvtool import device
from kvtool.device import PEAK_DTYPES, DeviceSpec, device_names, load_device, read_device
from kvtool.errors import KvtoolError, UsageError

GIB = 1 << 30

CARD = {
    "name": "test-card",
    "aliases": ["tc"],
    "vendor": "nvidia",
    "compute_capability": "9.0",
    "memory_nominal_bytes": {"value": 100, "source": "a data sheet"},
    "memory_usable_bytes": {"value": 90, "source": "a driver"},
    "bandwidth_bytes_per_s": None,
    "peak_flops_per_s": {"bf16": {"value": 7, "source": "a data sheet"}},
}


def write_card(folder: Path, **changes: object) -> Path:
    path = folder / "card.yaml"
    path.write_text(yaml.safe_dump(CARD | changes))
    return path


def faults_of(path: Path) -> tuple[str, ...]:
    with pytest.raises(KvtoolError) as caught:
        read_device(path)
    return caught.value.faults


@pytest.mark.parametrize("name", device_names())
def test_every_shipped_card_loads_under_its_own_name(name: str) -> None:
    card = load_device(name)

    assert card.name == name
    assert card.memory_bytes <= card.memory_nominal_bytes
    assert card.bandwidth_bytes_per_s is not None
    assert set(card.peak_flops_per_s) <= set(PEAK_DTYPES)


@pytest.mark.parametrize("name", device_names())
def test_every_figure_of_a_shipped_card_has_a_source(name: str) -> None:
    card = load_device(name)

    stated = {"memory_nominal_bytes", "bandwidth_bytes_per_s"}
    stated |= set() if card.memory_is_nominal else {"memory_usable_bytes"}
    stated |= {f"peak_flops_per_s.{dtype}" for dtype in card.peak_flops_per_s}
    assert set(card.sources) == stated
    assert all(source.strip() for source in card.sources.values())


def test_at_least_twenty_five_devices_are_shipped() -> None:
    assert len(device_names()) >= 25


def test_no_two_cards_answer_to_one_name() -> None:
    called = [device._plain(n) for c in device_names() for n in (c, *load_device(c).aliases)]

    assert len(called) == len(set(called))


def test_h200_reports_the_bytes_measured_on_one() -> None:
    # total_memory of torch's device properties on an NVIDIA H200 (driver 580): 143,156 MiB.
    h200 = load_device("h200")

    assert h200.memory_usable_bytes == 150_109_880_320
    assert not h200.memory_is_nominal
    assert h200.compute_capability == "9.0"


def test_usable_memory_of_an_h100_is_what_engines_print_not_what_is_sold() -> None:
    # llm-d-planner's accuracy report prints 79.19 GiB for an "80 GB" card.
    h100 = load_device("h100")

    assert round(h100.memory_bytes / GIB, 2) == 79.19
    assert h100.memory_nominal_bytes == 80 * GIB


@pytest.mark.parametrize(
    ("name", "dtype", "dense"),
    [
        ("h100-sxm", "bf16", 989_400_000_000_000),  # H100 white paper; 1,979 on the data sheet
        ("l4", "fp8", 242_500_000_000_000),  # L4 data sheet: 485 with sparsity
        ("rtx-5090", "bf16", 209_500_000_000_000),  # RTX Blackwell white paper, fp32 accumulation
        ("mi300x", "fp8", 2_614_900_000_000_000),  # MI300X data sheet, without sparsity
    ],
)
def test_peak_rates_are_dense(name: str, dtype: str, dense: int) -> None:
    assert load_device(name).peak_flops_per_s[dtype] == dense


@pytest.mark.parametrize(
    ("typed", "card"),
    [
        ("H200", "h200"),
        ("NVIDIA H200", "h200"),
        ("h100", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("rtx_4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("DGX Spark", "gb10"),
    ],
)
def test_names_and_aliases_are_found_in_any_spelling(typed: str, card: str) -> None:
    assert load_device(typed).name == card


def test_a_device_without_a_measured_size_says_that_it_is_nominal() -> None:
    mi325x = load_device("mi325x")

    assert mi325x.memory_is_nominal
    assert mi325x.memory_bytes == mi325x.memory_nominal_bytes == 256 * GIB


def test_an_unknown_device_is_a_usage_error_with_close_names() -> None:
    with pytest.raises(UsageError, match="no device card named 'h100-smx'") as caught:
        load_device("h100-smx")

    assert "'h100-sxm'" in caught.value.hint


@pytest.mark.parametrize("typed", ["", "../errors", "/etc/passwd", "h200.yaml", "no.yaml"])
def test_a_name_is_never_taken_for_a_file_of_the_package(typed: str) -> None:
    with pytest.raises(UsageError):
        load_device(typed)


def test_loading_by_file_name_reads_that_card_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    parse = device._parse_card

    def noted(text: bytes, origin: str) -> DeviceSpec:
        read.append(origin)
        return parse(text, origin)

    monkeypatch.setattr(device, "_parse_card", noted)
    device._shipped.cache_clear()

    load_device("H200")

    assert read == ["h200.yaml"]


def test_a_card_of_the_users_own_is_read_from_its_path(tmp_path: Path) -> None:
    card = load_device(str(write_card(tmp_path)))

    assert card == DeviceSpec(
        name="test-card",
        aliases=("tc",),
        vendor="nvidia",
        memory_nominal_bytes=100,
        memory_usable_bytes=90,
        bandwidth_bytes_per_s=None,
        peak_flops_per_s={"bf16": 7},
        compute_capability="9.0",
        sources={
            "memory_nominal_bytes": "a data sheet",
            "memory_usable_bytes": "a driver",
            "peak_flops_per_s.bf16": "a data sheet",
        },
    )


def test_all_faults_of_a_card_are_named_at_once(tmp_path: Path) -> None:
    path = write_card(
        tmp_path,
        color="green",
        vendor="acme",
        memory_nominal_bytes={"value": "80 GB", "source": "a data sheet"},
        peak_flops_per_s={"bf17": None},
    )

    assert faults_of(path) == (
        "card.yaml: unknown field 'color'",
        "card.yaml: vendor is 'acme', not one of amd, google, intel, nvidia, other",
        "card.yaml: memory_nominal_bytes has value '80 GB', not a positive integer",
        f"card.yaml: peak_flops_per_s has 'bf17', not one of {', '.join(PEAK_DTYPES)}",
    )


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"name": None}, "name is None"),
        ({"aliases": "h1"}, "aliases is 'h1'"),
        ({"aliases": [4090]}, r"aliases is \[4090\]"),
        ({"compute_capability": 9.0}, r"put it in quotes"),
        ({"compute_capability": "sm_90"}, "compute_capability is 'sm_90'"),
        ({"memory_nominal_bytes": None}, "memory_nominal_bytes is None"),
        ({"memory_nominal_bytes": {"value": 100}}, "not a value with its source"),
        ({"memory_nominal_bytes": {"value": 100, "source": " "}}, "has source ' '"),
        ({"bandwidth_bytes_per_s": {"value": True, "source": "x"}}, "has value True"),
        ({"bandwidth_bytes_per_s": {"value": -1, "source": "x"}}, "has value -1"),
        ({"bandwidth_bytes_per_s": {"value": 1e12, "source": "x"}}, "has value 1000000000000.0"),
        ({"memory_usable_bytes": {"value": 101, "source": "x"}}, "101 is more than"),
        ({"peak_flops_per_s": None}, "peak_flops_per_s is None"),
    ],
)
def test_a_fault_names_field_and_value(
    tmp_path: Path, changes: dict[str, object], fault: str
) -> None:
    with pytest.raises(KvtoolError, match=fault):
        read_device(write_card(tmp_path, **changes))


def test_a_record_cannot_hold_more_usable_memory_than_there_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="more memory usable"):
        DeviceSpec("x", (), "other", 10, 11, None, {}, None, {})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"name: [",
        b"\xff\xfe",
        b"- " * 30_000,
        b"[" * 5_000,
        b"a: &a [*a]",
        b"x" * 70_000,
    ],
    ids=["empty", "list", "cut", "not text", "wide", "deep", "self", "large"],
)
def test_a_file_that_is_no_card_is_an_error(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "card.yaml"
    path.write_bytes(text)

    assert "card.yaml" in faults_of(path)[0]


def test_a_card_that_is_missing_is_an_error(tmp_path: Path) -> None:
    assert faults_of(tmp_path / "gone.yaml")[0].startswith("cannot read")


@given(st.binary(max_size=200))
def test_bytes_that_are_no_card_never_give_another_exception(text: bytes) -> None:
    with pytest.raises(KvtoolError):
        device._parse_card(text, "card.yaml")
