"""Result files in, comparison out. Nothing here imports torch.

`sources` reads files, `columns` says what a table can show, `table` arranges it, and `formats`
holds one file for each way to write it down.
"""
