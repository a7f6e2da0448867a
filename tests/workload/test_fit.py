"""The fitted exponent of workloads whose exponent is known."""

from __future__ import annotations

import numpy as np
import pytest

from kvtool.errors import KvtoolError
from kvtool.workload.documents import DocumentWorkload, draw_requests
from kvtool.workload.fit import fit_zipf


@pytest.mark.parametrize("skew", [0.8, 1.2, 2.1])
@pytest.mark.parametrize("docs_per_request", [1, 5, 20])
def test_a_known_exponent_is_found_within_two_hundredths(skew, docs_per_request):
    workload = DocumentWorkload(
        docs=100_000, docs_per_request=docs_per_request, skew=skew, requests=20_000
    )
    requests = draw_requests(workload, (1,))

    fit = fit_zipf(np.bincount(requests.docs), 20_000, distinct=docs_per_request > 1)

    assert fit.skew == pytest.approx(skew, abs=0.02)
    assert 0 < fit.error < 0.02
    assert fit.distance < 0.02


def test_counts_that_are_no_zipf_have_a_large_distance():
    counts = np.array([1_000] * 5 + [10] * 500)

    assert fit_zipf(counts, 10_000, distinct=False).distance > 0.1


def test_too_few_ids_that_come_again_are_an_error():
    with pytest.raises(KvtoolError, match="only 4 ids"):
        fit_zipf(np.array([50, 40, 30, 20, 9, 9]), 100, distinct=False)
