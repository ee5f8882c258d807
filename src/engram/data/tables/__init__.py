"""Tables and time series: data frames, CSV, TSV and Parquet files.

Arrays in memory are in `data.conversion`, arrays in files in `data.npy_files`. Begin with
`data_frame`; the readers of files end there.
"""

from __future__ import annotations
