"""What other readers make of the files that tegula-trace writes, for tests."""

import collections
import subprocess


def total(values):
    sums = collections.defaultdict(float)
    for key, value in values:
        sums[key] += value
    return dict(sums)


def check_chrome(events):
    """What the description of the trace-event format demands of the phases we use; slices of a row nest or lie apart."""
    rows, open_messages = collections.defaultdict(list), {}
    for event in events:
        phase = event["ph"]
        assert phase in {"X", "M", "C", "b", "e"}, event
        assert isinstance(event["pid"], int) and isinstance(event["name"], str) and event["name"], event
        if phase == "M":
            assert event["name"] in {"process_name", "thread_name"} and isinstance(event["args"]["name"], str), event
            continue
        assert isinstance(event["ts"], (int, float)) and event["ts"] >= -1e-3, event
        if phase == "X":
            assert isinstance(event["tid"], int) and event["dur"] >= 0, event
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif phase == "C":
            assert event["args"] and all(isinstance(value, (int, float)) for value in event["args"].values()), event
        elif phase == "b":
            assert (event["cat"], event["id"]) not in open_messages, event
            open_messages[event["cat"], event["id"]] = event
        else:
            begun = open_messages.pop((event["cat"], event["id"]))
            assert begun["name"] == event["name"] and begun["ts"] <= event["ts"], event
    assert not open_messages, open_messages
    for row in rows.values():
        row.sort()
        for (_, end), (start, _) in zip(row, row[1:]):
            assert end <= start + 1e-3, f"{end} > {start}"
    return rows


def check_pj_dump(test, folder, report):
    """pj_dump accepts trace.paje, and finds the sums that the report has."""
    dump = subprocess.run(["pj_dump", "-l", "9", folder / "trace.paje"], capture_output=True, text=True, check=True).stdout
    rows = [[field.strip() for field in line.split(",")] for line in dump.splitlines()]
    states = [row for row in rows if row[0] == "State"]
    workers = {f"rank {worker['rank']} {worker['name']}" for worker in report["workers"]}
    test.assertEqual({row[1] for row in states}, workers)

    summary = report["summary"]
    kernels = [row for row in states if row[2] == "Kernel"]
    test.assertEqual(len(kernels), len(report["tasks"]["op"]))
    by_op = total((row[7], float(row[5])) for row in kernels)
    test.assertEqual(by_op.keys(), {row["name"] for row in summary["per_op"]})
    for row in summary["per_op"]:
        test.assertAlmostEqual(by_op[row["name"]], row["seconds"], places=6)
    by_state = total(((row[1], row[7]), float(row[5])) for row in states if row[2] == "State")
    for row in summary["per_worker"]:
        name = f"rank {row['rank']} {row['worker']}"
        for state in ("idle", "overhead", "scheduling", "transfer"):
            test.assertAlmostEqual(by_state.get((name, state), 0), row[f"{state}_s"], places=5)
        test.assertAlmostEqual(sum(float(r[5]) for r in kernels if r[1] == name), row["kernel_s"], places=6)
    for row in summary["per_rank"]:
        test.assertAlmostEqual(by_state.get((f"rank {row['rank']} MPI", "mpi"), 0), row["mpi_s"], places=5)
    sent = total((row[7], int(row[6])) for row in rows if row[0] == "Link")
    test.assertEqual(sent, {f"rank {row['rank']}": row["sent_bytes"] for row in summary["per_rank"]})
