"""ETF (Liang, Hanafy, Bashir, Irwin, Shenoy, SEC 2023): energy-time fairness on one GPU."""

from __future__ import annotations

from functools import partial

from commonwatt.reproduce.topic import Answer, Request, Topic

__all__ = ["TOPICS"]

_PAPER = "ETF (Liang, Hanafy, Bashir, Irwin, Shenoy, SEC 2023)"
_FIGURES = {
    "2": ("Unfairness of time-fair and energy-fair schedulers", "time and energy of two tenants"),
    "3": ("The example of section 4.3", "time slices and energies of three tenants"),
    "5": ("Two tenants under TF, EF and ETF", "F_T, F_E and F_S; improvement of ETF (2x)"),
    "6": ("System fairness against power disparity, 13 clocks", "power ratio (7.9), improvement of ETF (2x, 1.6x)"),
    "7": ("Time and energy against phi", "largest phi with perfect energy fairness (0.3)"),
    "8": ("Time and energy against phi at the power ratio of an A10G (2.2)", "that it lies higher than in Fig. 7"),
    "9": ("Three tenants that come and go", "guaranteed shares, power ratios (1.5, 2.5), use of the device"),
    "10": ("Incentive to save energy", "throughput (1.3x) and latency (-10%) of the tenant that lowers its clock"),
    "11": ("Weights 2 to 1 against phi", "largest phi with perfect energy fairness (0.6), energy in the ratio 2"),
}


def _run(request: Request, figures: tuple[str, ...]) -> Answer:
    from commonwatt.reproduce.papers._etf_figures import answer

    return answer(request, figures)


TOPICS = (
    Topic(
        "etf",
        "All figures of the evaluation, on profiles of a Jetson TX2 in virtual time",
        f"{_PAPER}, Fig. 2, 3 and 5 to 11",
        "every number the paper prints about them",
        partial(_run, figures=tuple(_FIGURES)),
        "the nine figures on one page",
    ),
    *(
        Topic(
            f"etf-figure-{number}", title, f"{_PAPER}, Fig. {number}", compares, partial(_run, figures=(number,)),
            "the figure",
        )
        for number, (title, compares) in _FIGURES.items()
    ),
)  # fmt: skip
