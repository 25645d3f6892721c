"""The page on longer training: what it compares, from a table of made-up numbers."""

from experiments.context_path import ACCURACY, CONTEXTS, FREQUENCIES, MEAN, RUNS, report
from experiments.runner.sets import WITH_BOILERPLATE


def test_the_page_compares_own_and_foreign_contexts():
    rows = []
    for model in RUNS.values():
        for seed in (0, 1):
            for number, context in enumerate(CONTEXTS):
                column = {"model": model, "seed": seed, "context": context}
                for step in (300, 1500):
                    points = {"set": "dc_law", "pooling": ACCURACY, "score": 50.0 - number + seed}
                    rows.append({**column, "step": step, **points})
                for name in ("cranfield", f"cranfield{WITH_BOILERPLATE}"):
                    for pooling, gain in ((MEAN, 0), (FREQUENCIES, 2)):
                        value = 40.0 - number * (1 + seed) + gain - (20 if name.endswith(WITH_BOILERPLATE) else 0)
                        rows.append({**column, "step": 1500, "set": name, "pooling": pooling, "score": value})
    page = report(rows)
    assert "the own context improves NDCG@10 by +1.5 ± 0.7 over a foreign one" in page.finding
    assert "accuracy on held-out domains by +1.0 ± 0.0" in page.finding
    assert (
        "| attention | mean | 40.0 ± 0.0 | 38.5 ± 0.7 | 37.0 ± 1.4 | 20.0 ± 0.0 | 18.5 ± 0.7 | 17.0 ± 1.4 |"
        in page.text
    )
    assert list(page.figures) == ["curves"]
