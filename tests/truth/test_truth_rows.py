"""Tables of measured steps are read whole, or refused with the place and what would be right."""

from __future__ import annotations

import json

import jsonschema
import pytest

from autoshard.truth.rows import RowError, read_rows, rows_schema
from autoshard.truth.tables import load, shipped
from costmodel.json_door import plain

SHIPPED = {
    "llm_foundry.csv": 108,
    "megatron_tables.csv": 8,
    "simumax_b200.csv": 21,
    "torchtitan_h100.csv": 5,
    "vtrain_multi_node.csv": 41,
    "vtrain_one_node.csv": 720,
}
ROW = {
    "id": "tiny",
    "table": "t",
    "model": {"builder": "gpt", "hidden": 8, "layers": 2, "heads": 2, "vocabulary": 16},
    "sequence": 4,
    "hardware": "a100",
    "axes": {"dp": 2},
    "plan": "data_parallel",
    "global_batch": 8,
    "micro_batch": 2,
    "measured": {"seconds": 0.1},
}


def _file(*rows, **more) -> dict:
    source = {"name": "nobody", "cite": "nothing"}
    return {"format": "autoshard truth", "version": 1, "source": source, "rows": list(rows), **more}


@pytest.fixture
def written(tmp_path):
    def write(data, name="rows.json"):
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return path

    return write


def test_all_shipped_tables_are_read():
    tables = {path.name: load(path) for path in shipped()}
    assert {name: len(one.rows) for name, one in tables.items()} == SHIPPED
    names = [row.id for one in tables.values() for row in one.rows]
    assert len(set(names)) == len(names)
    assert all(one.source.cite for one in tables.values())


def test_what_a_table_says_of_a_row():
    rows = {row.id: row for path in shipped() for row in load(path).rows}
    row = rows["llm-foundry 30b s2048 16 h100_80gb m10 x3 amp_bf16"]
    assert (row.plan, row.recompute, row.micro_batches, row.axes.devices) == ("zero3", "full", 3, 16)
    # 480 sequences of 2048 tokens at 2263 tokens a second on each of 16.
    assert row.measured.seconds == pytest.approx(480 * 2048 / (2263 * 16))


def test_seconds_from_operations(written):
    """Of the row that tells both: 96 B s l h^2 (1 + s / 6h + V / 16lh) operations at 137 TF/s on each GPU."""
    text = next(path for path in shipped() if path.name == "megatron_tables.csv").read_text()
    (told, *_), (found, *_) = (
        load(written(one, "rows.csv")).rows for one in (text, text.replace(",137,3.53", ",137,"))
    )
    assert told.measured.seconds == 3.53 and found.measured.seconds == pytest.approx(3.53, rel=0.01)


def test_the_gpu_of_a_paper_is_that_of_its_rows(written):
    line = "GPT-NeoX,20B,44,6144,64,50432,2048,96,A100-40GB,2,4,1,12,1536,4,full,117,\n"
    (row,) = load(written(_PAPERS + line, "rows.csv")).rows
    assert (row.hardware, row.axes.devices, row.micro_batches) == ("a100-40gb", 96, 32)


def test_rows_as_json(written):
    table = read_rows(written(_file(ROW)))
    (row,) = table.rows
    assert (row.micro_batches, row.axes.mesh, str(row.axes)) == (2, "dp=2", "dp=2")
    jsonschema.validate(_file(ROW), rows_schema())
    jsonschema.validate(_file(plain(row)), rows_schema())


BAD_ROWS = {
    "unknown field": ({"colour": 1}, "unknown field `colour`"),
    "negative": ({"sequence": -4}, "Expected `int` >= 1"),
    "milliseconds": ({"measured": {"seconds": 5000.0}}, "are these milliseconds?"),
    "memory in bytes": ({"measured": {"seconds": 1.0, "peak_gib": 8e10}}, "at most 1024"),
    "batch": ({"global_batch": 9}, "no multiple of 2 sequences on each of 2"),
    "heads": ({"model": {**ROW["model"], "heads": 3}}, "3 heads do not divide"),
    "groups": ({"model": {**ROW["model"], "kv_heads": 3}}, "3 heads of keys and values do not divide"),
    "sequence": ({"sequence": 2**40}, "they have at most 1048576"),
    "devices": ({"axes": {"dp": 2, "pp": 2**40}}, "devices; there are at most 1048576"),
    "vocabulary": (
        {"model": {**ROW["model"], "vocabulary": 2**60}},
        "a weight would have 9223372036854775808 elements",
    ),
    "recompute": ({"recompute": "some"}, "Invalid enum value 'some'"),
    "builder": ({"model": {**ROW["model"], "builder": "lstm"}}, "Invalid enum value 'lstm'"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows(written, name):
    change, words = BAD_ROWS[name]
    with pytest.raises(RowError, match="rows.json") as error:
        load(written(_file({**ROW, **change})))
    assert words in str(error.value)


def test_a_name_twice(written):
    with pytest.raises(RowError, match="'tiny': its name stands there twice"):
        load(written(_file(ROW, ROW)))


_HEADER = (
    "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,"
    "data parallelism,pipeline parallelism,iteration time (ms)\n"
)
_PAPERS = (
    "source,model,layers,hidden,heads,vocabulary,sequence,gpus,gpu,tensor,pipeline,interleave,data,global_batch,"
    "micro_batch,recompute,tflops_per_gpu,seconds\n"
)
_TITAN = "source,model,gpus,gpu,parallel,local_batch,sequence,recompute,precision,compile,tokens_per_second_per_gpu\n"
_CASES = "case,real ms\n"
_FOUNDRY = (
    "Model,SeqLen (T),# GPUs,GPU,MicroBatchSize,GradAccum,Precision,Sharding Strategy,Activation Checkpointing,"
    "Activation CPUOffload,Throughput (T/s/GPU)\n"
)
BAD_TABLES = {
    "GPUs of a paper": (_PAPERS + "a,b,4,64,4,512,128,16,A100-80GB,2,4,1,1,64,1,full,100,\n", "are 8 GPUs, not 16"),
    "other GPUs": (_PAPERS + "a,b,4,64,4,512,128,8,V100,2,4,1,1,64,1,full,100,\n", "gpu is 'V100'; it is one of A100"),
    "no header": ("", "no source publishes tables"),
    "other header": ("a,b\n1,2\n", "'a, b'"),
    "column": (_HEADER.replace("# layers,", ""), "of the columns of vtrain on one node '# layers' is missing"),
    "column twice": (_HEADER.replace("# GPUs", "# Layers"), "the column '# layers' of vtrain on one node stands there"),
    "no seconds": (_PAPERS + "a,b,4,64,4,512,128,8,A100-80GB,2,4,1,1,64,1,full,,\n", "seconds and tflops_per_gpu are"),
    "words of a plan": (_TITAN + "a,Llama-3.1-8B,8,H200,FSDP 8 EP 2,2,8192,full,bf16,no,5000\n", "'ep' is not known"),
    "a model": (_CASES + "mixtral_9x9b_tp1_pp1_dp8_mbc4,700\n", "behind mixtral '9x9b' is not known"),
    "on the host": (_FOUNDRY + "7b,2048,8,h100_80gb,4,1,bf16,FULL_SHARD,True,True,9000\n", "Activation CPUOffload is"),
    "short line": (_HEADER + "2,16\n", "line 2: it has another number of cells"),
    "no number": (_HEADER + "2,16,x,1024,16,24,1024,1,1,2,372.1\n", "line 2: micro batch is 'x'"),
    "negative": (_HEADER + "2,16,8,1024,16,24,1024,1,1,2,-3\n", "iteration time (ms) is '-3'"),
    "devices": (_HEADER + "4,16,8,1024,16,24,1024,1,1,2,372.1\n", "are 2 GPUs, not 4"),
    "milliseconds": (_HEADER + "2,16,8,1024,16,24,1024,1,1,2,0.372\n", "its products alone take"),
    "not a time": (_HEADER + "2,16,8,1024,16,24,1024,1,1,2,nan\n", "it is a number above 0"),
}


def test_columns_in_any_order_and_with_others(written):
    names = ["note", *reversed([name for name in _HEADER.strip().split(",") if name != "# GPUs"])]
    values = "said by us", "900", "2", "4.0", "2", "1024", "24", "16", " 1024 ", "8", "512"
    lines = [",".join(f" {name.upper()}" for name in names), ",".join(values)]
    (row,) = load(written("\n".join([*lines, "," * 10, ""]), "rows.csv")).rows
    assert (row.axes.devices, row.micro_batch, row.model.hidden, row.measured.seconds) == (16, 8, 1024, 0.9)
    assert row.recompute == "full", "on two nodes"


def test_rows_measured_twice_and_async(written):
    line = "a,llama 3.1 8b,16,h100,{},2,8192,FULL,float8,True,5000\n"
    text = _TITAN + "".join(line.format(how) for how in ("FSDP 2 TP 8", "TP=8 FSDP=2", "FSDP 2 AsyncTP 8"))
    first, second, third = load(written(text, "rows.csv")).rows
    assert second.id == f"{first.id} (line 3)" and third.id == f"{first.id} async"
    assert (first.axes.tp, first.measured.peak_gib, first.hardware) == (8, None, "h100")


def test_the_longest_name_of_a_model_is_its_own(written):
    cases = ("mixtral_8x22b_l4_tp1_ep4_pp2_vpp2_dp4_mbc4_mbs2_fp8_full_recompute", "qwen3_32b_tp8_pp1_mbc4_cef")
    first, second = load(written(_CASES + "".join(f"{case},800\n" for case in cases), "rows.csv")).rows
    assert (first.model.hidden, first.chunks, first.global_batch, first.micro_batch) == (6144, 2, 32, 2)
    assert (first.precision, first.recompute, first.loss) == ("f8", "full", "apart")
    assert load(written(f"{_CASES}{cases[0]},800\n".replace(",", ";"), "rows.csv")).rows == (first,)
    assert (second.model.builder, second.model.layers, second.loss) == ("llama", 64, "fused")


def test_rates_of_all_gpus_and_batches_that_follow(written):
    text = _FOUNDRY.replace("(T/s/GPU)", "(S/s)") + "mpt-7B,2048,8,H100-80GB,4,2,fp8,SHARD_GRAD_OP,yes,no,32\n"
    (row,) = load(written(text, "rows.csv")).rows
    assert (row.global_batch, row.measured.seconds, row.plan, row.recompute) == (64, 2.0, "zero3_keep", "full")


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables(written, name):
    text, words = BAD_TABLES[name]
    with pytest.raises(RowError, match="rows.csv") as error:
        load(written(text, "rows.csv"))
    assert words in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for name, words in (("none.csv", "No such file"), ("none.json", "No such file"), ("binary.csv", "UTF-8")):
        with pytest.raises(RowError, match=words):
            load(tmp_path / name)
