"""Hit rates and times of libCacheSim, printed as JSON.

Runs in an environment of its own that has libcachesim (GPL-3.0; measured with 0.3.5) and nothing of
this project, which neither imports nor ships it:

    python libcachesim_oracle.py TRACE POLICY SIZE [SIZE ..]

TRACE is in its oracleGeneral format: records of 24 bytes, little endian, (uint32 time, uint64 id,
uint32 size, int64 next access or -1). All objects count 1; each size is one pass over the file. Its
hash table starts at 2^20 entries instead of 2^24, which suits a million objects and is faster.
"""

from __future__ import annotations

import json
import sys
import time

import libcachesim


def main(trace: str, policy: str, sizes: list[int]) -> dict[str, object]:
    """Hit rate and seconds per size."""
    hit_rates, seconds = [], []
    for size in sizes:
        reader = libcachesim.TraceReader(trace, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        cache = getattr(libcachesim, policy)(cache_size=size, hashpower=20)
        start = time.perf_counter()
        miss_ratio, _ = cache.process_trace(reader)
        seconds.append(time.perf_counter() - start)
        hit_rates.append(1 - miss_ratio)
    return {"policy": policy, "sizes": sizes, "hit_rates": hit_rates, "seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], [int(size) for size in sys.argv[3:]])))
