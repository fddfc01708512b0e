"""Numerical building blocks without statistics, written here because libraries lack them or are slower.

Matrix products in full float32 precision (`precision`), normal noise in one pass over memory (`noise`), gradients of
large last layers (`outer_products`), inverses of many small matrices (`inverses`, `gauss_jordan`), compiler options for
NVIDIA GPUs (`nvidia`), and the number of operations of a function (`operation_counts`). May import: nothing of gpvi but
`errors`. Nothing here is public.
"""
