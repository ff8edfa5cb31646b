"""`moorage devices`: shows, sets and compares algorithms that choose devices, and moves pods off those that failed."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ..exit_codes import DONE, FAILED, USAGE, Failure
from ..gateway_client import Client, path
from ..output import Format, StateDir, show
from ..table import table
from ..terminal import out

app = App(name="devices", help="Show, set and compare algorithms that choose devices, and move pods from failed ones.")


@app.command
def algorithm(name: str = "", /, *, output: Format = "table", state: StateDir = None) -> int:
    """Show or set the algorithm that chooses devices where neither a need nor its class names one.

    Parameters
    ----------
    name
        The algorithm to use from now on, for administrators; without it, the current one is shown.
    """
    client = Client.find(state)
    where = path("devices", "algorithm")
    found = client.call("PUT", where, body={"algorithm": name}) if name else client.get(where)
    if output in ("json", "yaml"):
        return show(found, output)
    out(found["algorithm"])
    return DONE


@app.command
def move(cluster: str, /, *, kind: str = "", output: Format = "table", state: StateDir = None) -> int:
    """Let pods leave devices that failed together, for administrators.

    If over half of a cluster's devices of a kind fail within a minute, a driver probably restarts: pods stay (MassFailure) until
    the devices are back. This moves them at once, to other devices of the cluster or to another cluster.

    Parameters
    ----------
    cluster
        The cluster, PROVIDER/NAME.
    kind
        Only devices of this kind; without it, of all kinds.
    """
    found = Client.find(state).call("POST", path("devices", "move"), body={"cluster": cluster, "kind": kind})
    if output in ("json", "yaml"):
        return show(found, output)
    kinds = found["kinds"]
    out(f"pods leave failed devices of {cluster}: {', '.join(kinds)}" if kinds else f"{cluster} has no mass failure")
    return DONE


@app.command
def replay(
    *,
    nodes: Annotated[Path, Parameter(help="CSV with the columns sn, cpu_milli, memory_mib, gpu and model.")],
    tasks: Annotated[
        Path, Parameter(help="CSV with the columns name, cpu_milli, memory_mib, num_gpu, gpu_milli and gpu_spec.")
    ],
    algorithm: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    placements: Path | None = None,
    output: Annotated[
        Literal["table", "json", "yaml"], Parameter(name=["--output", "-o"], help="Output format.")
    ] = "table",
) -> int:
    """Replay a trace of tasks on empty nodes, and show how much of the devices is allocated.

    Tasks are placed in the order of the file by the code that decisions use. What does not fit is dropped. An algorithm that
    learns knows only the tasks before.

    Parameters
    ----------
    algorithm
        Algorithms to compare: first-fit, best-fit, most-allocated, spread, aligned, fgd, or one of an installed package
        (default: the default one).
    placements
        File to write where each task went, as CSV with the columns task, node and gpus: `0:460` is 46 % of device 0. For one
        algorithm only.
    """
    from moorage.device_algorithms import DEFAULT, UnknownAlgorithm, find_algorithm
    from moorage.device_algorithms.trace import BadTrace, kinds_of, read_nodes, read_tasks
    from moorage.device_algorithms.trace import replay as replay_trace

    names = list(dict.fromkeys(algorithm or [DEFAULT]))
    if placements is not None and len(names) > 1:
        raise Failure("--placements is for one algorithm; give --algorithm once", USAGE)
    try:
        algorithms = [find_algorithm(name) for name in names]
    except UnknownAlgorithm as error:
        raise Failure(str(error), USAGE) from error
    file = nodes
    try:
        of_nodes = read_nodes(io.StringIO(_text(nodes), newline=""))
        file = tasks
        of_tasks = read_tasks(io.StringIO(_text(tasks), newline=""), kinds_of(of_nodes))
    except BadTrace as error:
        raise Failure(f"{file}: {error}", FAILED) from error
    rows = []
    for found in algorithms:
        result = replay_trace(of_nodes, of_tasks, found)
        rows.append(_row(found.name, len(of_tasks), result.placed, result.allocated, result.seconds))
        if placements is not None:
            _write(placements, result.placements)
    if output != "table":
        return show(rows[0] if len(rows) == 1 else rows, output)
    out(
        table(
            ["ALGORITHM", "TASKS", "PLACED", "ALLOCATED", "P50 MS", "P99 MS"],
            [
                [
                    row["algorithm"],
                    row["tasks"],
                    row["placed"],
                    f"{row['allocatedPercent']:.2f}%",
                    f"{row['perDecisionMs']['p50']:.3f}",
                    f"{row['perDecisionMs']['p99']:.3f}",
                ]
                for row in rows
            ],
        )
    )
    return DONE


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot read {file}: {error}", FAILED) from error


def _row(name: str, tasks: int, placed: int, allocated: float, seconds: list[float]) -> dict[str, Any]:
    import numpy as np

    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3 if seconds else (0.0, 0.0)
    return {
        "algorithm": name,
        "tasks": tasks,
        "placed": placed,
        "allocatedPercent": round(allocated, 4),
        "perDecisionMs": {"p50": round(float(p50), 4), "p99": round(float(p99), 4)},
    }


def _write(file: Path, placements: list[Any]) -> None:
    try:
        with file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["task", "node", "gpus"])
            for found in placements:
                writer.writerow([found.task, found.node, " ".join(f"{n}:{found.share}" for n in sorted(found.devices))])
    except OSError as error:
        raise Failure(f"cannot write {file}: {error}", FAILED) from error
