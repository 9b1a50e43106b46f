"""Whose uploads were left out, how often and why."""

from fedpm.report.runs import run_names
from fedpm.report.tables import Cell, Table
from fedpm.study.results import Collection, Outcome

_MOST = 30  # rows; rounds.jsonl has all


def rejected_table(collection: Collection) -> list[Table]:
    """Return a table of the clients that were left out of a round, most often first; none if there are none."""
    names = run_names([run.folder for run in collection.runs])
    found = [(names[run.folder], *client) for run in collection.runs for client in _of(run)]
    if not found:
        return []
    found.sort(key=lambda row: -len(row[2]))
    several = len(collection.runs) > 1
    rows = [
        [*([Cell(run)] if several else []), Cell(who), Cell(str(len(rounds))), Cell(_span(rounds)), Cell(why)]
        for run, who, rounds, why in found[:_MOST]
    ]
    more = f" {len(found) - _MOST} more stand in rounds.jsonl." if len(found) > _MOST else ""
    note = f"Clients whose uploads could not be used, or that the aggregator took for lies.{more}"
    head = [*(["run"] if several else []), "client", "times", "rounds", "the last time because"]
    return [Table("rejected", "Uploads left out", note, head, 1 + several, rows)]


def _of(run: Outcome) -> list[tuple[str, list[int], str]]:
    """Return each client that was left out, in which rounds, and why the last time."""
    clients: dict[str, tuple[str, list[int], str]] = {}
    for record in run.records:
        named = dict(zip(map(str, record["clients"]), record.get("names", ()), strict=False))
        for client, reason in record["rejected"].items():
            earlier = clients[client][1] if client in clients else []
            clients[client] = (named.get(client, client), [*earlier, record["round"]], reason)
    return list(clients.values())


def _span(rounds: list[int]) -> str:
    return str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]}–{rounds[-1]}"
