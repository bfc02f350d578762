"""XGBoost: a tree a step, on the GPU."""

import numpy as np
import steps
import xgboost

random = np.random.default_rng(0)
x = random.standard_normal((200_000, 50), np.float32)
y = x[:, :5].sum(1) + random.standard_normal(len(x)) > 0
data = xgboost.DMatrix(x, label=y)
booster = xgboost.Booster({"device": "cuda", "objective": "binary:logistic", "eval_metric": "logloss", "seed": 1}, [data])


def step(number):
    booster.update(data, number)
    return booster.eval(data).split(":")[-1]


steps.make(step)
