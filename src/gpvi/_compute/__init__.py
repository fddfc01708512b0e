"""Numerical building blocks with no statistics in them, confined here because libraries lack them or are slower.

Exact float32 products (`precision`), noise in one pass (`noise`), gradients of large last layers (`outer_products`),
batched small inverses (`inverses`, `gauss_jordan`), compiler options for NVIDIA GPUs (`nvidia`) and counts of a
function's operations (`operation_counts`). May import: nothing of gpvi but `errors`. Nothing here is public.
"""
