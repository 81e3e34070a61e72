"""Answers a column of Parquet files with a packed model on Spark.

    spark-submit spark_predict.py --model model.qbert --data rows/ --out answers/ [--text review]

Every task maps the model into memory, and tasks of one machine share its pages. Tasks that fail are tried again, and
Spark puts the output in place when all are done, so each row is there once or nothing is.

On a cluster, --model is a path that all machines see (or comes with `--files`), and qbert is installed on all of them.
"""

import argparse
import functools

import pyarrow
from pyspark.sql import SparkSession, types


def answers(batches, model, text, threads):
    """The batches with the label of each text."""
    import qbert

    # Opening maps the file, which takes milliseconds.
    model = qbert.load(model, threads=threads)
    for batch in batches:
        found = model.predict(batch.column(text).to_pylist())
        labels = pyarrow.array([answer["label"] for answer in found], pyarrow.string())
        probabilities = pyarrow.array([answer["probability"] for answer in found], pyarrow.float64())
        columns = [*batch.columns, labels, probabilities]
        yield pyarrow.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "label", "probability"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, help="a Parquet file, or a directory of them")
    parser.add_argument("--out", required=True, help="a directory")
    parser.add_argument("--text", default="text", help="the column with the texts")
    parser.add_argument("--threads", type=int, default=1, help="threads of each worker: Spark runs one worker per core")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("qbert").config("spark.sql.execution.arrow.maxRecordsPerBatch", "1024").getOrCreate()
    rows = spark.read.parquet(options.data)
    schema = types.StructType([*rows.schema.fields])
    schema = schema.add("label", types.StringType()).add("probability", types.DoubleType())
    answer = functools.partial(answers, model=options.model, text=options.text, threads=options.threads)
    rows.mapInArrow(answer, schema).write.mode("overwrite").parquet(options.out)
    spark.stop()


if __name__ == "__main__":
    main()
