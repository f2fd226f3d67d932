"""Square of each element: y = a^2.

square(a) -> y

    a  any shape   float16 | bfloat16 | float32 | float64
    y  shape of a  dtype of a; float16 and bfloat16 are multiplied in float32

Implementations that autograd can differentiate have a backward as well (``workload.pass=bwd``).
"""
