"""What holds of every format that himach writes tables in: `TableFormatTests`, which the tests of each inherit."""

from __future__ import annotations

import datetime
from typing import Any, ClassVar

import numpy as np
import pytest

from himach.output.formats import table_content
from himach.output.table import Column, Table

NUMBERS = ["?", "i1", "i2", "u2", "i8", "u8", "f2", "f4", "f8", "g", ">f8"]
OTHERS = ["c8", "c16", "M8[s]", "M8[D]", "m8[ns]", "U3"]


class TableFormatTests:
    """Columns come back as they were, or as texts; what a format has not is left out or refused."""

    kind = ""
    #: Whether columns that are no numbers are written.
    has_texts = True
    #: Types in which numbers are read, where they are not those of the table; None: all are texts, or of one type.
    types: ClassVar[dict[str, str] | None] = {}
    #: What is read of None in columns of floats, integers, truths and texts.
    absent: tuple[Any, ...] = (None, None, None, None)

    def write(self, table: Table) -> bytes:
        return table_content(table, "table", self.kind)

    def read(self, content: bytes) -> dict[str, Any]:
        """Return the cells of each column."""
        raise NotImplementedError

    def read_units(self, table: Table) -> dict[str, str]:
        """Return the units that the file of a table tells."""
        raise NotImplementedError

    def check_texts(self, column: Any, texts: list[str]) -> None:
        """A column is read as these texts, or left out."""
        columns = self.read(self.write(Table({"x": np.arange(len(texts)), "t": column})))
        assert set(columns) == ({"x", "t"} if self.has_texts else {"x"})
        assert not self.has_texts or list(columns["t"]) == texts

    @pytest.mark.parametrize("dtype", NUMBERS)
    def test_numbers_of_every_type_come_back(self, dtype):
        column = np.array([0, 1]).astype(dtype)
        cells = np.array(self.read(self.write(Table({"n": [4, 5], "x": column})))["x"])
        np.testing.assert_array_equal(cells.astype(dtype), column)
        assert self.types is None or cells.dtype == self.types.get(dtype, dtype)

    @pytest.mark.parametrize("dtype", OTHERS)
    def test_columns_of_other_types_come_back_or_are_left_out(self, dtype):
        column = np.array([0, 1]).astype(dtype)
        if column.dtype.kind == "c" and self.types is not None:
            self.check_texts(column, ["0j", "(1+0j)"])
            return
        columns = self.read(self.write(Table({"x": [0.0, 1.0], "t": column})))
        assert ("t" in columns) == self.has_texts
        if self.has_texts:
            np.testing.assert_array_equal(np.array(columns["t"]).astype(dtype), column)

    def test_every_digit_of_a_number_comes_back(self):
        numbers = [0.1 + 0.2, 1e-300, -1 / 3, np.nan, np.inf, -np.inf, 2.0**53 + 2]
        columns = self.read(self.write(Table({"x": np.arange(7), "number": numbers})))
        np.testing.assert_array_equal(np.array(columns["number"]).astype(float), numbers)

    def test_texts_come_back(self):
        texts = ["é", "", "b,c", 'd"', "e\r\nf", "None", "3"]
        self.check_texts(texts, texts)
        self.check_texts(["no utf-8 \udc80", "b"], [r"no utf-8 \udc80", "b"])

    def test_what_is_absent_is_told(self):
        columns = {"f": [0.5, None], "i": [1, None], "b": [True, None], "t": ["a", None]}
        cells = self.read(self.write(Table({"x": [0, 1], **columns})))
        assert [repr(cells[name][1]) for name in columns if name in cells] == list(map(repr, self.absent))

    def test_objects_are_texts(self):
        cells = [
            (np.int64(1), "a"),
            {3, 1, 2},
            2**70,
            datetime.date(2024, 1, 2),
            b"x",
            np.arange(2000),
            np.float64(0.1),
        ]
        texts = ["(1, 'a')", "[1, 2, 3]", str(2**70), "2024-01-02", "b'x'", str(list(range(2000))), "0.1"]
        self.check_texts(cells, texts)
        self.check_texts([2**70, 1], [str(2**70), "1"])

    def test_names_of_columns_come_back(self):
        names = ["a/b", "a_b", "%", "float", "1 - 2", "row", "é", "b,c", "x (1)"]
        columns = self.read(self.write(Table({name: [number] for number, name in enumerate(names)})))
        assert [(name, int(cells[0])) for name, cells in columns.items()] == [
            *zip(names, range(len(names)), strict=True)
        ]

    def test_a_table_without_rows_has_its_columns(self):
        columns = self.read(self.write(Table({"x": np.empty(0), "n": np.empty(0, np.int64)})))
        assert {name: list(cells) for name, cells in columns.items()} == {"x": [], "n": []}

    def test_units_are_told(self):
        table = Table({"time_ps": Column([0.0, 0.5], "ps"), "rmsd": Column([1, 2], "Å"), "n": [1, 2]})
        assert self.read_units(table) == {"time_ps": "ps", "rmsd": "Å"}

    def test_equal_tables_are_equal_bytes(self):
        table, equal, other = (Table({"x": [1.0, 2.0], "y": Column([3, last], "nm")}) for last in (4, 4, 5))
        assert self.write(table) == self.write(equal) != self.write(other)
        assert str(datetime.date.today().year).encode() not in self.write(table)
