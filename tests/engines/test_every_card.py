"""Every card on every engine: a row whose reasons add up, or an error that says what is missing."""

from __future__ import annotations

import pytest

from kvtool import engines, fit
from kvtool.catalog import card_names, load_model
from kvtool.engines.base import Deployment
from kvtool.errors import KvtoolError

# What an adapter says it does not cover; nothing else may be refused.
NOT_COVERED = ("does not cover", "has no width here")


@pytest.mark.parametrize("engine", ["sglang", "trtllm", "transformers"])
def test_every_card_is_sized_or_refused_by_name(engine: str) -> None:
    adapter, sized, refused = engines.load(engine), 0, []

    for name in card_names():
        case = fit.Case(load_model(name), 4096, 1, adapter, Deployment(encoder_tokens=1500))
        try:
            row = fit.size(case).row
        except KvtoolError as error:
            refused.append(str(error))
            continue
        sized += 1
        total = sum(reason["bytes"] for reason in row["reasons"])
        assert row["request_bytes"] == row["sequence_bytes"] + total, name

    assert sized >= 290
    assert [text for text in refused if not any(part in text for part in NOT_COVERED)] == []
