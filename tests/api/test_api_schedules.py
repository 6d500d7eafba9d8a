"""Looking up the best schedule: exact, stale, nearest, missed; and the artifact's bytes."""

import dataclasses
import hashlib

import pytest
from api_world import finish, tiled
from fastapi.testclient import TestClient
from store_nouns import ARTIFACT, IDENTITY, best_config, claimed, device, gemm, job_spec

from db.store import SqlStore

EXACT = "op=gemm&m=4&n=8&k=16&dtype=fp32"


@pytest.fixture
def tuned(client: TestClient, store: SqlStore) -> str:
    """The id of the schedule of a 4x8x16 GEMM on the CPU."""
    return finish(store, claimed(store, job_spec(gemm())))[0]


@pytest.mark.parametrize(
    "query",
    [
        EXACT,
        f"{EXACT}&target=cpu",
        f"{EXACT}&target=llvm&arch=znver3&cores=2",
        f"{EXACT}&trans_b=false&trans_a=0",
        f"{EXACT}&device=EPYC%207763&driver=glibc%202.36&policy=v1/warm",
        "op=gemm&m=4&n=8&k=16&dtype_a=float32&dtype_b=fp32&dtype_out=fp32&epilogue=none",
    ],
)
def test_the_exact_schedule_is_found(client: TestClient, tuned: str, query: str) -> None:
    answer = client.get(f"/v1/schedules/best?{query}")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["exact"], found["schedule"]["id"]) == (True, tuned)
    assert found["schedule"]["artifact_url"] == f"/v1/schedules/{tuned}/artifact"
    assert found["schedule"]["knobs"] == {"tile": 4}
    assert found["latency_s"] == 0.001
    assert found["tflops"] == pytest.approx(2 * 4 * 8 * 16 / 0.001 / 1e12)
    assert found["bytes_per_s"] == pytest.approx(4 * (4 * 16 + 16 * 8 + 4 * 8) / 0.001)
    assert found["baseline"] == {"name": "torch.matmul", "latency_s": 0.002}
    assert found["speedup_vs_baseline"] == pytest.approx(2.0)
    assert found["roofline"] == {"bound": "compute", "fraction": 0.8, "ridge_flop_per_byte": 12.5}
    assert found["served"] == {"kind": "tilewright"}
    assert found["environment"]["driver"] == "glibc 2.36"


@pytest.mark.parametrize(
    "query",
    [
        "op=gemm&m=17&n=512&k=512&dtype=fp32",
        f"{EXACT}&trans_b=true",
        f"{EXACT}&target=cuda",
        f"{EXACT}&target=cuda&arch=sm_90a",
        f"{EXACT}&arch=skylake",
        f"{EXACT}&cores=64",
    ],
)
def test_another_shape_flag_or_target_is_untuned(client: TestClient, tuned: str, query: str) -> None:
    answer = client.get(f"/v1/schedules/best?{query}")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert answer.json()["code"] == "untuned"


def test_another_driver_makes_it_stale_and_says_so(client: TestClient, store: SqlStore, tuned: str) -> None:
    problem = client.get(f"/v1/schedules/best?{EXACT}&driver=glibc%209").json()
    assert (problem["status"], problem["code"], problem["differs"]) == (404, "stale", ["driver"])


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("m=4", "op"),
        ("op=conv", "op"),
        (f"{EXACT}&trnas_b=true", "trnas_b"),
        (f"{EXACT}&trans_b=maybe", "trans_b"),
        (f"{EXACT}&nearest=2", "nearest"),
        (f"{EXACT}&m=5", "m"),
        ("op=gemm&m=4&n=8&dtype=fp32", "k"),
        ("op=gemm&m=4&n=8&k=1.5&dtype=fp32", "k"),
        ("op=gemm&m=4&n=8&k=99999999999999999999&dtype=fp32", "k"),
        ("op=gemm&m=4&n=8&k=0&dtype=fp32", "k"),
        ("op=gemm&m=4&n=8&k=2&dtype=float17", "dtype"),
        ("op=gemm&m=4&n=8&k=2&dtype=fp32&causal=true", "causal"),
        ("op=attention&heads=2&seq=4&head_dim=8&dtype=fp32&softcap=x", "softcap"),
        ("op=attention&heads=2&seq=4&head_dim=8&dtype=fp32&softcap=1e999", "softcap"),
        (f"{EXACT}&target=tpu", "target"),
        (f"{EXACT}&cores=0", "cores"),
        (f"{EXACT}&device=%00", "device"),
        (f"{EXACT}&device=", "device"),
    ],
)
def test_wrong_parameters_are_named(steady: TestClient, query: str, field: str) -> None:
    answer = steady.get(f"/v1/schedules/best?{query}")
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_attention_is_asked_with_its_own_fields(steady: TestClient) -> None:
    query = "op=attention&heads_q=8&heads_kv=2&seq=128&head_dim=64&dtype=bf16&causal=1&scale=0.5&pass=forward"
    problem = steady.get(f"/v1/schedules/best?{query}").json()
    assert problem["code"] == "untuned"
    wanted = {"heads_q": 8, "heads_kv": 2, "seq_q": 128, "seq_kv": 128, "causal": True, "scale": 0.5}
    assert problem["workload"].items() >= wanted.items()


def test_a_neighbour_is_labelled_and_predicted(client: TestClient, tuned: str) -> None:
    answer = client.get("/v1/schedules/best?op=gemm&m=8&n=8&k=16&dtype=fp32&nearest=true").json()
    assert (answer["exact"], answer["schedule"]["id"], answer["nearest_to"]["m"]) == (False, tuned, 8)
    low, high = answer["predicted_interval_s"]
    # By the record's own ridge (12.5 FLOP a byte) both shapes are bound by memory: 896 bytes against 1280.
    assert answer["predicted_latency_s"] == pytest.approx(0.001 * 1280 / 896)
    assert low < answer["predicted_latency_s"] < high
    assert answer["predicted_baseline_latency_s"] == pytest.approx(0.002 * 1280 / 896)
    # m is a run-time extent of the sketch: the very kernel runs.
    assert (answer["runs_as_is"], answer["served"]) == (True, {"kind": "tilewright"})
    assert answer["neighbour"]["latency_s"] == 0.001


def test_a_kernel_compiled_for_another_n_is_not_handed_out(client: TestClient, tuned: str) -> None:
    answer = client.get("/v1/schedules/best?op=gemm&m=4&n=16&k=16&dtype=fp32&nearest=1").json()
    assert (answer["runs_as_is"], answer["served"]) == (False, {"kind": "vendor"})
    assert answer["schedule"]["artifact_url"] is None


def test_a_neighbour_whose_knobs_are_not_legal_is_passed_over(client: TestClient, tuned: str) -> None:
    """Its tile is 4 wide, wider than n = 2."""
    answer = client.get("/v1/schedules/best?op=gemm&m=4&n=2&k=16&dtype=fp32&nearest=true")
    assert (answer.status_code, answer.json()["code"]) == (404, "untuned")


def test_the_vendor_is_served_where_ours_is_slower(client: TestClient, store: SqlStore) -> None:
    lease = claimed(store, job_spec(gemm()))
    slower = dataclasses.replace(
        best_config(0.004, chosen=tiled()), speedup=0.5, speedup_ci95=(0.49, 0.51), served="vendor"
    )
    store.promote(lease, lease.tasks[0].task_id, slower, ARTIFACT)
    found = client.get(f"/v1/schedules/best?{EXACT}").json()
    assert (found["served"], found["speedup_vs_baseline"], found["latency_s"]) == ({"kind": "vendor"}, 0.5, 0.004)
    near = client.get("/v1/schedules/best?op=gemm&m=8&n=8&k=16&dtype=fp32&nearest=true").json()
    assert near["served"] == {"kind": "vendor"}


def test_the_artifact_is_its_content(client: TestClient, tuned: str) -> None:
    answer = client.get(f"/v1/schedules/{tuned}/artifact")
    digest = hashlib.sha256(answer.content).hexdigest()
    assert (answer.content, answer.headers["etag"]) == (ARTIFACT, f'"{digest}"')
    assert answer.headers["content-disposition"] == f'attachment; filename="{tuned}.tilewright"'
    assert client.get(f"/v1/schedules/{tuned}").json()["schedule"]["artifact"] == digest
    for tag in (f'"{digest}"', f'W/"{digest}"', f'"x", "{digest}"'):
        cached = client.get(f"/v1/schedules/{tuned}/artifact", headers={"If-None-Match": tag})
        assert (cached.status_code, cached.content) == (304, b"")
    assert client.get(f"/v1/schedules/{tuned}/artifact", headers={"If-None-Match": '"x"'}).status_code == 200


def test_a_batch_answers_each_in_its_place(client: TestClient, tuned: str) -> None:
    shape = {"op": "gemm", "m": 4, "n": 8, "k": 16, "dtype": "fp32"}
    body = {"workloads": [shape, {**shape, "m": 8}, {**shape, "k": 0}, {**shape, "trans_b": True}], "nearest": True}
    items = client.post("/v1/schedules/best:batch", json=body).json()["items"]
    assert [i["status"] for i in items] == ["exact", "nearest", "refused", "missed"]
    assert items[0]["result"]["schedule"]["id"] == tuned
    assert items[1]["result"]["nearest_to"]["m"] == 8
    assert (items[2]["problem"]["field"], items[2]["result"]) == ("workloads.2.k", None)
    assert items[3]["problem"]["code"] == "untuned"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "workloads"),
        ({"workloads": []}, "workloads"),
        ({"workloads": [{}] * 513}, "workloads"),
        ({"workloads": [{}], "nearest": "yes"}, "nearest"),
        ({"workloads": [{}], "target": "tpu"}, "target.kind"),
        ({"workloads": [{}], "extra": 1}, "extra"),
        ([], ""),
    ],
)
def test_a_batch_that_cannot_be_right(steady: TestClient, body: object, field: str) -> None:
    answer = steady.post("/v1/schedules/best:batch", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_lookups_are_counted_by_what_they_found(client: TestClient, store: SqlStore, tuned: str) -> None:
    for _ in range(3):
        client.get(f"/v1/schedules/best?{EXACT}")
    client.get(f"/v1/schedules/best?{EXACT}&target=cpu&driver=other")
    client.get("/v1/schedules/best?op=gemm&m=8&n=8&k=16&dtype=fp32&nearest=true")
    client.get("/v1/schedules/best?op=gemm&m=9&n=9&k=9&dtype=bf16")
    items = client.get("/v1/lookups").json()["items"]
    found = {(i["workload"]["m"], i["target"]["kind"]): {k: v for k, v in i["counts"].items() if v} for i in items}
    assert found == {
        (4, "auto"): {"exact": 3},
        (4, "cpu"): {"stale": 1},
        (8, "auto"): {"nearest": 1},
        (9, "auto"): {"missed": 1},
    }
    first = client.get("/v1/lookups?limit=3").json()
    rest = client.get(f"/v1/lookups?limit=3&cursor={first['next_cursor']}").json()
    assert len(first["items"] + rest["items"]) == 4


def test_an_update_of_the_machine_makes_its_schedules_stale(client: TestClient, store: SqlStore, tuned: str) -> None:
    newer = dataclasses.replace(IDENTITY, driver="glibc 2.41")
    store.heartbeat_devices("runner-1", [device(identity=newer)], 60.0)
    problem = client.get(f"/v1/schedules/best?{EXACT}").json()
    assert (problem["code"], problem["differs"]) == ("stale", ["driver"])
