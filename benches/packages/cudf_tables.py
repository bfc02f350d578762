"""cuDF: tables that are grouped, joined, sorted and searched on the GPU, with its own pool of memory."""

import cudf
import numpy as np
import rmm
import steps

rmm.reinitialize(pool_allocator=True, initial_pool_size=1 << 30)
rng = np.random.default_rng(1)
ROWS = 200_000
sales = cudf.DataFrame(
    {
        "shop": rng.integers(0, 500, ROWS),
        "price": rng.integers(1, 10_000, ROWS),
        "day": cudf.Series(np.datetime64("2020-01-01") + rng.integers(0, 1000, ROWS).astype("timedelta64[D]")),
        "what": cudf.Series([f"item {number % 977} of {number % 13}" for number in range(ROWS)]),
    }
)
shops = cudf.DataFrame({"shop": np.arange(500), "city": [f"city {number % 37}" for number in range(500)]})


def step(number):
    rows = sales[sales["price"] % 7 != number % 7]
    joined = rows.merge(shops, on="shop")
    joined["year"] = joined["day"].dt.year
    sums = joined.groupby(["city", "year"]).agg({"price": ["sum", "max", "count"]}).sort_index()
    found = rows["what"].str.contains(f" {number % 13}$", regex=True).sum()
    words = rows["what"].str.split(" ", expand=True)[1].value_counts().sort_index()
    return steps.digest(np.concatenate([sums.to_pandas().to_numpy().ravel(), words.to_pandas().to_numpy(), [int(found)]]))


steps.make(step)
